"""A case: one recurrent network, its input, and the gradients asked for. Plain data, immutable, framework-free.

Parameters are canonical, as cuDNN, PyTorch and MXNet's fused operator have them; see :class:`Weights`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bridge.errors import BadInputError
from bridge.limits import KEYS, not_covered

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.floating[Any]]

MODES = ("rnn_tanh", "rnn_relu", "rnn_identity", "lstm", "gru")

GATES = {"rnn_tanh": 1, "rnn_relu": 1, "rnn_identity": 1, "lstm": 4, "gru": 3}
"""Gates per mode, in the row order ``i f g o`` (LSTM) and ``r z n`` (GRU)."""

DTYPES = ("float32", "float64")
REQUESTABLE = ("x", "params", "h0", "c0")
PARAM_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

QUANTITIES: dict[str, tuple[str, ...]] = {
    "x": ("dx",),
    "params": tuple("d" + name for name in PARAM_NAMES),
    "h0": ("dh0",),
    "c0": ("dc0",),
}
"""The gradients that each requestable thing stands for."""

QUANTITY_ORDER = ("y", *(name for names in QUANTITIES.values() for name in names))
"""All that is compared, in the order in which tables have it."""

MAX_FILE_BYTES = 256 * 2**20
"""Largest case file that is read. Arrays beyond it belong in an ``.npz``."""

MAX_ARRAY_BYTES = 8 * 2**30
_INLINE_ELEMENTS = 20_000  # a case with more is saved with an .npz beside it


class Weights(NamedTuple):
    """Parameters of one layer in one direction; G gates, H hidden units, I inputs; weights times column vectors.

    ``weight_ih (G*H, I)``, ``weight_hh (G*H, H)``, ``bias_ih (G*H,)``, ``bias_hh (G*H,)``.
    """

    weight_ih: Array
    weight_hh: Array
    bias_ih: Array
    bias_hh: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One recurrent network with weights, input, initial state, head gradients and the gradients asked for.

    Parameters
    ----------
    name : str
        Fit for a file name.
    mode : str
        ``rnn_tanh``, ``rnn_relu``, ``rnn_identity``, ``lstm`` or ``gru``. A GRU's reset gate acts after the product:
        ``n = tanh(W_in x + b_in + r * (W_hn h + b_hn))``, ``h' = (1 - z) * n + z * h``.
    x : array, (T, B, I)
        Input sequence.
    params : sequence per layer of sequences per direction (forward, reverse) of :class:`Weights`
        (or mappings with its four names). Layers above the first take the D*H outputs of the one below.
    h0, c0 : array, (layers * D, B, H)
        Initial states, layer by layer, forward before reverse. ``c0`` belongs to LSTM alone.
    dtype : str
        ``float32`` or ``float64``: what frameworks compute in. Arrays are stored in it, read-only.
    head : ``"ones"``, ``"last"`` or array, (T, B, D*H)
        Head gradients of ``y``: all ones, ones at the last step alone, or given.
    head_hn, head_cn : array, (layers * D, B, H), optional
        Head gradients of the final states.
    requested : iterable out of ``x``, ``params``, ``h0``, ``c0``
        The gradients a framework is asked for.
    seq_lens : iterable of int, optional
        Prefixes of ``x`` to run; the whole of it by default.
    source : str
        Where the numbers come from.

    Raises
    ------
    BadInputError
        Naming key, expected and found.
    """

    name: str
    mode: str
    x: Array
    params: tuple[tuple[Weights, ...], ...]
    h0: Array
    c0: Array | None = None
    dtype: str = "float64"
    head: str | Array = "ones"
    head_hn: Array | None = None
    head_cn: Array | None = None
    requested: tuple[str, ...] = ("x", "params", "h0")
    seq_lens: tuple[int, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):  # what overflows in float32 is refused as not finite
            _Validation(self).run()

    # -- sizes ---------------------------------------------------------------------------------------------------

    @property
    def seq_len(self) -> int:
        """T, the steps of ``x``."""
        return int(self.x.shape[0])

    @property
    def batch(self) -> int:
        """B, the sequences in ``x``."""
        return int(self.x.shape[1])

    @property
    def input_size(self) -> int:
        """I, the features of ``x``."""
        return int(self.x.shape[2])

    @property
    def hidden_size(self) -> int:
        """H, the units of a layer in one direction."""
        return int(self.h0.shape[2])

    @property
    def layers(self) -> int:
        """How many layers are stacked."""
        return len(self.params)

    @property
    def directions(self) -> int:
        """D: 1, or 2 when bidirectional."""
        return len(self.params[0])

    @property
    def bidirectional(self) -> bool:
        """Whether each layer also runs from the end to the start."""
        return self.directions == 2

    @property
    def gates(self) -> int:
        """G, the gates of the cell."""
        return GATES[self.mode]

    @property
    def quantities(self) -> tuple[str, ...]:
        """The forward ``y``, then the gradients that ``requested`` stands for."""
        return ("y", *(quantity for name in self.requested for quantity in QUANTITIES[name]))

    # -- what a backend feeds ------------------------------------------------------------------------------------

    def heads(
        self, seq_len: int | None = None, loss_step: int | None = None
    ) -> tuple[Array, Array | None, Array | None]:
        """Head gradients for the prefix of ``seq_len`` steps, written out.

        With ``loss_step`` s (0-based) the loss is the sum of (the given head times, else one times) output s alone,
        and the final states' heads do not count.

        Returns
        -------
        head_y (seq_len, B, D*H), head_hn and head_cn (layers * D, B, H) or None; in the case's dtype.

        Raises
        ------
        BadInputError
            For a ``seq_len`` or ``loss_step`` outside the case.
        """
        length = self.check_length(seq_len)
        shape = (length, self.batch, self.directions * self.hidden_size)
        if isinstance(self.head, str):
            head = np.zeros(shape, self.dtype) if self.head == "last" else np.ones(shape, self.dtype)
            head[-1] = 1
        else:
            head = self.head[:length]
        if loss_step is None:
            return head, self.head_hn, self.head_cn
        if not 0 <= loss_step < length:
            raise BadInputError(f"case {self.name!r}", "loss_step", f"0 to {length - 1}", str(loss_step))
        only = np.zeros(shape, self.dtype)
        only[loss_step] = 1 if isinstance(self.head, str) else head[loss_step]
        return only, None, None

    def check_length(self, seq_len: int | None) -> int:
        """Return ``seq_len`` (None: all of ``x``) if the case has that many steps."""
        if seq_len is None:
            return self.seq_len
        if not 1 <= seq_len <= self.seq_len:
            raise BadInputError(f"case {self.name!r}", "seq_len", f"1 to {self.seq_len}", str(seq_len))
        return seq_len

    def replace(self, **changes: Any) -> Case:
        """Return a copy with some fields changed, validated anew."""
        return dataclasses.replace(self, **changes)

    # -- identity ------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Array]:
        """Every array of the case by its key in a case file (``params`` as ``params[layer][direction].name``)."""
        found: dict[str, Array | None] = {"x": self.x, "h0": self.h0, "c0": self.c0}
        for layer, directions in enumerate(self.params):
            for direction, weights in enumerate(directions):
                for key, array in zip(PARAM_NAMES, weights, strict=True):
                    found[f"params[{layer}][{direction}].{key}"] = array
        found["head"] = None if isinstance(self.head, str) else self.head
        found["head_hn"], found["head_cn"] = self.head_hn, self.head_cn
        return {key: array for key, array in found.items() if array is not None}

    def digest(self) -> str:
        """SHA-256 over every array bit and every option; name and source do not count."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        options = {
            "format": 1,
            "mode": self.mode,
            "dtype": self.dtype,
            "head": self.head if isinstance(self.head, str) else "given",
            "requested": self.requested,
            "seq_lens": self.seq_lens,
        }
        total = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
        for key, array in self.arrays().items():
            total.update(f"\0{key}{array.shape}".encode())
            total.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        return total.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Case):
            return NotImplemented
        return (self.name, self.source) == (other.name, other.source) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash((self.name, self.digest()))

    def __repr__(self) -> str:
        return f"<Case {self.name}: {self.network}>"

    @property
    def network(self) -> str:
        """What it is, in a line for people: mode, layers, dtype, sizes, what is requested."""
        way = "bidirectional " if self.bidirectional else ""
        return (
            f"{way}{self.mode}, {self.layers} layer{'s' * (self.layers > 1)}, {self.dtype}, "
            f"T={self.seq_len} B={self.batch} I={self.input_size} H={self.hidden_size}, "
            f"asks for {' '.join(self.requested)}"
        )

    # -- between processes ---------------------------------------------------------------------------------------

    def to_plain(self) -> dict[str, Any]:
        """Return the case as plain values and ``(dtype, shape, bytes)`` arrays, for a worker process."""
        return {
            "name": self.name,
            "mode": self.mode,
            "dtype": self.dtype,
            "head": self.head if isinstance(self.head, str) else "given",
            "requested": self.requested,
            "seq_lens": self.seq_lens,
            "source": self.source,
            "shape": (self.layers, self.directions),
            "arrays": {key: pack(array) for key, array in self.arrays().items()},
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Case:
        """Inverse of :meth:`to_plain`."""
        arrays = {key: unpack(packed) for key, packed in plain["arrays"].items()}
        layers, directions = plain["shape"]
        return cls(
            name=plain["name"],
            mode=plain["mode"],
            x=arrays["x"],
            params=tuple(
                tuple(
                    Weights(*(arrays[f"params[{layer}][{direction}].{key}"] for key in PARAM_NAMES))
                    for direction in range(directions)
                )
                for layer in range(layers)
            ),
            h0=arrays["h0"],
            c0=arrays.get("c0"),
            dtype=plain["dtype"],
            head=arrays.get("head", plain["head"]),
            head_hn=arrays.get("head_hn"),
            head_cn=arrays.get("head_cn"),
            requested=tuple(plain["requested"]),
            seq_lens=tuple(plain["seq_lens"]),
            source=plain["source"],
        )

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the case as JSON that :func:`load_case` reads back to the bit, whole or not at all.

        A case of more than 20,000 numbers keeps them in an ``.npz`` of the same name beside it.

        Raises
        ------
        BadInputError
            For a path that ends in ``.npz``.
        OSError
            If the file cannot be written; an earlier one is then left as it was.
        """
        path = Path(path)
        if path.suffix == ".npz":
            raise BadInputError(str(path), "", "a path ending in .json", "the place of the arrays")
        arrays = self.arrays()
        outside = sum(array.size for array in arrays.values()) > _INLINE_ELEMENTS
        beside = path.with_suffix(".npz")
        written = {
            key: {"npz": beside.name, "key": key} if outside else _shortest(array) for key, array in arrays.items()
        }
        document: dict[str, Any] = {
            "name": self.name,
            "source": self.source,
            "mode": self.mode,
            "dtype": self.dtype,
            "layers": self.layers,
            "bidirectional": self.bidirectional,
            "seq_lens": list(self.seq_lens),
            "head": self.head if isinstance(self.head, str) else written["head"],
            "requested": list(self.requested),
            "x": written["x"],
        }
        cells = [
            [
                {key: written[f"params[{layer}][{direction}].{key}"] for key in PARAM_NAMES}
                for direction in range(self.directions)
            ]
            for layer in range(self.layers)
        ]
        if (self.layers, self.directions) == (1, 1):
            document |= cells[0][0]
        else:
            document["params"] = cells
        document |= {key: written[key] for key in ("h0", "c0", "head_hn", "head_cn") if key in written}
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
        if outside:
            with atomic(beside) as temporary, open(temporary, "wb") as file:
                np.savez(file, **arrays)
        with atomic(path) as temporary:
            temporary.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
        return path

    # -- live models ---------------------------------------------------------------------------------------------

    @classmethod
    def from_gluon(cls, layer: Any, x: Any, states: Any = None, **fields: Any) -> Case:
        """Take the case out of a live ``mxnet.gluon.rnn`` layer (RNN, LSTM, GRU; MXNet 1.x and 2.x).

        Parameters
        ----------
        layer : initialized gluon layer.
        x : array in the layer's own layout (``TNC`` or ``NTC``).
        states : the layer's states, (layers * D, B, H) each; zeros by default.
        fields : further fields of :class:`Case` (``name``, ``head``, ``requested``, ...).

        Raises
        ------
        BadInputError
            For a layer that a case cannot express (projection, dropout, state clipping, other blocks).
        """
        from bridge.backends.mxnet import fields_from_gluon  # layout knowledge stays with the backend

        return cls(**(fields_from_gluon(layer, x, states) | fields))

    @classmethod
    def from_torch(cls, module: Any, x: Any, states: Any = None, **fields: Any) -> Case:
        """Take the case out of a live ``torch.nn.RNN``, ``LSTM`` or ``GRU``.

        Parameters
        ----------
        module : the module.
        x : tensor in the module's own layout (``batch_first`` or not), batched.
        states : what the module takes as ``hx``; zeros by default.
        fields : further fields of :class:`Case` (``name``, ``head``, ``requested``, ...).

        Raises
        ------
        BadInputError
            For a module that a case cannot express (projection, dropout, other modules).
        """
        from bridge.backends.torch import fields_from_torch  # layout knowledge stays with the backend

        return cls(**(fields_from_torch(module, x, states) | fields))


# -- validation --------------------------------------------------------------------------------------------------


class _Validation:
    """Checks a case under construction, key by key, and stores the checked values in it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.where = f"case {_shown(case.name)}"

    def refuse(self, key: str, expected: str, found: str) -> BadInputError:
        return BadInputError(self.where, key, expected, found)

    def store(self, key: str, value: Any) -> None:
        object.__setattr__(self.case, key, value)

    def run(self) -> None:
        case = self.case
        self.name()
        self.choice("mode", case.mode, tuple(GATES))
        self.choice("dtype", case.dtype, DTYPES)
        x = self.array("x", case.x, (None, None, None), "(T, B, I)")
        for axis, letter in enumerate("TBI"):
            if x.shape[axis] == 0:
                raise self.refuse("x", f"shape (T, B, I) with {letter} of at least 1", f"shape {x.shape}")
        self.store("x", x)
        length, batch, _ = x.shape
        self.store("params", self.parameters())
        state = (case.layers * case.directions, batch, case.params[0][0].weight_hh.shape[1])
        self.store("h0", self.array("h0", case.h0, state, "(layers*D, B, H)"))
        self.optional("c0", state, lstm_only=True)
        if case.mode == "lstm" and case.c0 is None:
            raise self.refuse("c0", f"an array of shape {state} (an LSTM has a cell state)", "none")
        self.optional("head_hn", state)
        self.optional("head_cn", state, lstm_only=True)
        self.store("head", self.head((length, batch, case.directions * case.hidden_size)))
        self.store("requested", self.requests())
        self.store("seq_lens", self.lengths(length))
        if not isinstance(case.source, str):
            raise self.refuse("source", "text", type(case.source).__name__)

    def name(self) -> None:
        name = self.case.name
        fit = "text fit for a file name: up to 100 printable characters without / and \\, not starting with . or -"
        if not isinstance(name, str):
            raise self.refuse("name", fit, type(name).__name__)
        if (
            not 1 <= len(name) <= 100
            or len(name.encode(errors="replace")) > 200
            or not name.isprintable()
            or name != name.strip()
            or name[0] in ".-"
            or re.search(r"[/\\]", name)
        ):
            raise self.refuse("name", fit, _shown(name))

    def choice(self, key: str, value: Any, choices: Sequence[str]) -> None:
        if not isinstance(value, str) or value not in choices:
            raise self.refuse(key, "one of " + ", ".join(choices), _shown(value))

    def array(self, key: str, value: ArrayLike, shape: Sequence[int | None], letters: str) -> Array:
        given = value if isinstance(value, np.ndarray) else self.parsed(key, value, letters)
        if given.dtype.kind not in "fiu":
            raise self.refuse(key, "real numbers", f"dtype {given.dtype}")
        if given.ndim != len(shape) or any(
            size is not None and size != got for size, got in zip(shape, given.shape, strict=True)
        ):
            raise self.refuse(key, _shape(shape, letters), f"shape {given.shape}")
        stored: Array = np.array(given, dtype=self.case.dtype, order="C")
        fine = np.isfinite(stored)
        if not fine.all():
            index = tuple(int(i) for i in np.argwhere(~fine)[0])
            raise self.refuse(
                key, f"finite {self.case.dtype} numbers", f"{given[index]} at [{', '.join(map(str, index))}]"
            )
        stored.setflags(write=False)
        return stored

    def parsed(self, key: str, value: ArrayLike, letters: str) -> NDArray[Any]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", np.VisibleDeprecationWarning)  # all that NumPy 1.23 says of ragged rows
                return np.asarray(value)
        except (ValueError, np.VisibleDeprecationWarning):
            raise self.refuse(key, f"an array of shape {letters}", "ragged rows") from None
        except (TypeError, RuntimeError) as error:
            raise self.refuse(key, "real numbers", f"{type(value).__name__} ({error})") from None

    def optional(self, key: str, shape: tuple[int, ...], lstm_only: bool = False) -> None:
        value = getattr(self.case, key)
        if value is None:
            return
        if lstm_only and self.case.mode != "lstm":
            raise self.refuse(key, f"no such key for mode {self.case.mode} (only an LSTM has a cell state)", "one")
        self.store(key, self.array(key, value, shape, "(layers*D, B, H)"))

    def parameters(self) -> tuple[tuple[Weights, ...], ...]:
        params, gates = self.case.params, self.case.gates
        if not isinstance(params, (list, tuple)) or not params:
            raise self.refuse("params", "a list per layer of a list per direction", _kind(params))
        result: list[tuple[Weights, ...]] = []
        hidden: int | None = None
        inputs = int(self.case.x.shape[2])
        for layer, given in enumerate(params):
            if not isinstance(given, (list, tuple)) or isinstance(given, Weights) or len(given) not in (1, 2):
                raise self.refuse(f"params[{layer}]", "a list of one or two directions", _kind(given))
            if result and len(given) != len(result[0]):
                raise self.refuse(f"params[{layer}]", f"{len(result[0])} directions as in layer 0", str(len(given)))
            cells = []
            for direction, weights in enumerate(given):
                place = f"params[{layer}][{direction}]"
                fields = self.fields(place, weights)
                if hidden is None:
                    recurrent = self.array(f"{place}.weight_hh", fields["weight_hh"], (None, None), "(G*H, H)")
                    hidden = recurrent.shape[1]
                    if hidden == 0:
                        raise self.refuse(f"{place}.weight_hh", "at least one hidden unit", f"shape {recurrent.shape}")
                rows = gates * hidden
                shapes = {
                    "weight_ih": ((rows, inputs), "(G*H, I)" if layer == 0 else "(G*H, D*H)"),
                    "weight_hh": ((rows, hidden), "(G*H, H)"),
                    "bias_ih": ((rows,), "(G*H)"),
                    "bias_hh": ((rows,), "(G*H)"),
                }
                cells.append(Weights(*(self.array(f"{place}.{key}", fields[key], *shapes[key]) for key in PARAM_NAMES)))
            result.append(tuple(cells))
            inputs = len(cells) * (hidden or 0)
        return tuple(result)

    def fields(self, place: str, weights: Any) -> Mapping[str, ArrayLike]:
        if isinstance(weights, Weights):
            return weights._asdict()
        if isinstance(weights, Mapping) and set(weights) == set(PARAM_NAMES):
            return weights
        raise self.refuse(place, "the keys " + ", ".join(PARAM_NAMES), _kind(weights))

    def head(self, shape: tuple[int, ...]) -> str | Array:
        head = self.case.head
        if isinstance(head, str):
            if head not in ("ones", "last"):
                raise self.refuse("head", f"'ones', 'last' or an array of shape {shape}", _shown(head))
            return head
        return self.array("head", head, shape, "(T, B, D*H)")

    def requests(self) -> tuple[str, ...]:
        requested, known = self.case.requested, REQUESTABLE if self.case.mode == "lstm" else REQUESTABLE[:3]
        if isinstance(requested, str) or not isinstance(requested, Iterable):
            raise self.refuse("requested", "a list out of " + ", ".join(known), _kind(requested))
        wanted = list(requested)
        for name in wanted:
            if name not in known:
                raise self.refuse(
                    "requested", f"names out of {', '.join(known)} for mode {self.case.mode}", _shown(name)
                )
        if not wanted:
            raise self.refuse("requested", "at least one of " + ", ".join(known), "an empty list")
        return tuple(name for name in REQUESTABLE if name in wanted)

    def lengths(self, length: int) -> tuple[int, ...]:
        given = self.case.seq_lens
        if isinstance(given, (str, int)) or not isinstance(given, Iterable):
            raise self.refuse("seq_lens", "a list of sequence lengths", _kind(given))
        lengths = list(given) or [length]
        for value in lengths:
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= length:
                raise self.refuse("seq_lens", f"whole numbers from 1 to {length}, the steps of x", _shown(value))
        if len(set(lengths)) != len(lengths):
            again = next(value for value in lengths if lengths.count(value) > 1)
            raise self.refuse("seq_lens", "each length once", f"{again} more than once")
        return tuple(int(value) for value in lengths)


def _shape(sizes: Sequence[int | None], letters: str) -> str:
    """Say which shape is wanted: the known sizes in numbers, and what all of them mean."""
    names = letters.strip("()").split(", ")
    words = [name if size is None else str(size) for name, size in zip(names, sizes, strict=True)]
    wanted = f"({', '.join(words)}{',' * (len(words) == 1)})"
    return f"shape {wanted}" + ("" if wanted == letters else f" {letters}")


def _shown(value: Any) -> str:
    """One short printable line for a value of the caller's."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "the keys " + (", ".join(map(str, value)) or "none")
    if isinstance(value, (np.ndarray, str)):
        return f"{type(value).__name__} {_shown(value)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    return type(value).__name__


def _shortest(array: Array) -> Any:
    """Nested lists of the shortest decimals that read back to the same bits in the array's dtype."""
    flat = [float(str(value)) for value in array.ravel()]
    for size in reversed(array.shape[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)]  # type: ignore[misc]
    return flat


# -- arrays between processes ------------------------------------------------------------------------------------


def pack(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    """Return an array as ``(dtype, shape, bytes)``, which any process can read without pickle."""
    return (array.dtype.str, tuple(int(size) for size in array.shape), np.ascontiguousarray(array).tobytes())


def unpack(packed: Sequence[Any]) -> Array:
    """Inverse of :func:`pack`."""
    dtype, shape, data = packed
    array: Array = np.frombuffer(data, dtype=np.dtype(dtype)).reshape(tuple(shape))
    return array


class atomic:  # noqa: N801 - used as a function
    """Context that gives a temporary path beside ``path`` and moves it there only when the block ended well."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.temporary

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.replace(self.temporary, self.path)
        finally:
            self.temporary.unlink(missing_ok=True)


# -- reading -----------------------------------------------------------------------------------------------------


def shipped_cases() -> tuple[str, ...]:
    """Names of the cases inside the package, sorted."""
    folder = resources.files("bridge") / "cases"
    return tuple(sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".json")))


def load_case(name_or_path: str | os.PathLike[str]) -> Case:
    """Read a case: the name of a shipped one, or the path of a JSON file.

    ``docs/cases.md`` describes the format; arrays are inline, or ``{"npz": "file.npz", "key": "x"}`` naming an
    array of an ``.npz`` beside the file. Nothing is unpickled or evaluated.

    Raises
    ------
    BadInputError
        One line naming file, key, expected and found, for anything that is not a valid case.
    """
    text = os.fsdecode(name_or_path)
    if text in shipped_cases():
        return _load_file(Path(str(resources.files("bridge") / "cases" / f"{text}.json")), text)
    if not os.path.isfile(text):  # unlike Path.is_file, False for a path that is too long or may not be looked at
        found = "a folder" if os.path.isdir(text) else "no such file"
        expected = f"a case file or one of the shipped cases ({', '.join(shipped_cases())})"
        raise BadInputError(text or "''", "", expected, found)
    return _load_file(Path(text), text)


def _load_file(path: Path, where: str) -> Case:
    document = _decode(path, where)
    try:
        return _build(document, path)
    except BadInputError as error:
        raise error.at(where) from None


def _decode(path: Path, where: str) -> Any:
    import msgspec

    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise BadInputError(
                where, "", f"at most {MAX_FILE_BYTES} bytes (arrays can lie in an .npz beside it)", f"{size} bytes"
            )
        data = path.read_bytes()
    except OSError as error:
        raise BadInputError(where, "", "a readable file", error.strerror or str(error)) from None
    if not data.strip():
        raise BadInputError(where, "", "a case as JSON", "an empty file")
    try:
        return msgspec.json.decode(data, type=_file_format())
    except msgspec.ValidationError as error:
        raise _explain(where, str(error)) from None
    except UnicodeDecodeError:
        raise BadInputError(where, "", "a case as JSON (UTF-8 text)", "bytes that are not text") from None
    except RecursionError:
        raise BadInputError(where, "", "a case as JSON", "lists nested too deeply") from None
    except msgspec.DecodeError as error:
        raise _explain_syntax(where, str(error), data) from None


def _explain_syntax(where: str, message: str, data: bytes) -> BadInputError:
    """Say in which line the text stops being JSON, and that JSON has no NaN where that is why."""
    message = message.removeprefix("JSON is malformed: ")
    match = re.search(r" \(byte (\d+)\)$", message)
    if not match:
        return BadInputError(where, "", "a case as JSON", "a truncated file" if "truncated" in message else message)
    place = int(match[1])
    line = f"line {data[:place].count(10) + 1}"
    around = data[max(place - 6, 0) : place + 10]
    nonfinite = re.search(rb"(?<=[\[,:\s])-?(?:nan|inf(?:inity)?)\b", around, re.IGNORECASE)
    if nonfinite:
        return BadInputError(where, line, "finite numbers", f"{nonfinite.group().decode()}, which is not JSON")
    return BadInputError(where, line, "JSON", message[: match.start()])


def _explain(where: str, message: str) -> BadInputError:
    """Turn msgspec's "Expected `float`, got `str` - at `$.x[0][1]`" into where, key, expected, found."""
    text, _, place = message.rpartition(" - at `$") if " - at `$" in message else (message, "", "")
    key = place.rstrip("`").lstrip(".")
    if match := re.fullmatch(r"Object missing required field `(\w+)`", text):
        return BadInputError(where, ".".join(filter(None, [key, match[1]])), "this key", "none")
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        if match[1] in KEYS:
            return not_covered(where, match[1], KEYS[match[1]], "this key")
        cell = re.fullmatch(r"params\[\d+\]\[\d+\]", key)
        known = ("npz", "key") if key and not cell else PARAM_NAMES if cell else _file_format().__struct_fields__
        return BadInputError(where, key, f"keys out of {', '.join(known)}", f"the unknown key {_shown(match[1])}")
    if match := re.fullmatch(r"Expected `(.*)`, got `(.*)`", text):
        kinds = set(match[1].split(" | ")) - {"null"}  # in an order of msgspec's own
        words = {
            "array": "a list",
            "array object": "an array or {npz, key}",
            "array object str": "'ones', 'last', an array or {npz, key}",
            "bool": "true or false",
            "float": "a number",
            "int": "a whole number",
            "object": "an object in braces",
            "str": "text",
        }
        expected = " ".join(sorted(kinds))
        return BadInputError(where, key, words.get(expected, expected), match[2])
    if "out of range" in text:
        return BadInputError(where, key, "a finite number", "one too large to hold")
    return BadInputError(where, key, "a valid value", text)


def _file_format() -> Any:
    """The case file as a msgspec type. Built on first use: only reading a file needs msgspec."""
    global _FORMAT
    if _FORMAT is None:
        import msgspec

        def strict(name: str, fields: list[Any]) -> Any:
            return msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True)

        outside = strict("NpzArray", [("npz", str), ("key", str)])
        vector, matrix, block = (
            list[float] | outside,
            list[list[float]] | outside,
            list[list[list[float]]] | outside,
        )
        shapes = {"weight_ih": matrix, "weight_hh": matrix, "bias_ih": vector, "bias_hh": vector}
        cell = strict("Cell", list(shapes.items()))
        _FORMAT = strict(
            "CaseFile",
            [
                ("name", str),
                ("mode", str),
                ("dtype", str),
                ("layers", int),
                ("bidirectional", bool),
                ("requested", list[str]),
                ("x", block),
                ("h0", block),
                ("source", str, ""),
                ("seq_lens", list[int], msgspec.field(default_factory=list)),
                ("head", str | block, "ones"),
                *((key, block | None, None) for key in ("c0", "head_hn", "head_cn")),
                *((key, shape | None, None) for key, shape in shapes.items()),
                ("params", list[list[cell]] | None, None),  # type: ignore[valid-type]
            ],
        )
    return _FORMAT


_FORMAT: Any = None


def _build(document: Any, path: Path) -> Case:
    archives = _Archives(path.parent)

    def array(key: str, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, list):
            _check_ragged(key, value)
            return np.array(value, dtype=np.float64) if value else np.zeros((0,))
        return archives.read(key, value.npz, value.key)

    def weights(place: str, holder: Any) -> dict[str, Any]:
        return {key: array(f"{place}{key}", getattr(holder, key)) for key in PARAM_NAMES}

    at_top = [key for key in PARAM_NAMES if getattr(document, key) is not None]
    if document.params is not None:
        if at_top:
            raise BadInputError("", at_top[0], "weights either in params or at the top", "both")
        params = [
            [weights(f"params[{layer}][{direction}].", cell) for direction, cell in enumerate(cells)]
            for layer, cells in enumerate(document.params)
        ]
    else:
        if len(at_top) < len(PARAM_NAMES):
            missing = next(key for key in PARAM_NAMES if key not in at_top)
            alone = document.layers == 1 and not document.bidirectional
            key, expected = (missing, "this key (or params)") if alone else ("params", "this key, for several cells")
            raise BadInputError("", key, expected, "none")
        params = [[weights("", document)]]
    directions = 2 if document.bidirectional else 1
    if len(params) != document.layers:
        raise BadInputError("", "layers", f"{len(params)}, the layers that have weights", str(document.layers))
    for layer, cells in enumerate(params):
        if len(cells) != directions:
            expected = f"{directions} (bidirectional is {str(document.bidirectional).lower()})"
            raise BadInputError("", f"params[{layer}]", f"{expected} directions", str(len(cells)))
    single = document.params is None
    try:
        return Case(
            name=document.name,
            source=document.source,
            mode=document.mode,
            dtype=document.dtype,
            seq_lens=tuple(document.seq_lens),
            requested=tuple(document.requested),
            params=params,  # type: ignore[arg-type]
            **{key: array(key, getattr(document, key)) for key in ("x", "h0", "c0", "head", "head_hn", "head_cn")},
        )
    except BadInputError as error:
        key = error.key.removeprefix("params[0][0].") if single else error.key
        raise BadInputError(error.where, key, error.expected, error.found) from None


def _check_ragged(key: str, value: list[Any]) -> None:
    """Refuse lists that are not all of one length, naming the first row that differs."""
    sizes: list[int] = []
    level: list[tuple[str, Any]] = [(key, value)]
    while level and isinstance(level[0][1], list):
        size = len(level[0][1])
        for place, row in level:
            if len(row) != size:
                raise BadInputError("", place, f"{size} entries like the rows before it", f"{len(row)} (ragged)")
        sizes.append(size)
        if math.prod(sizes) > MAX_ARRAY_BYTES // 8:
            raise BadInputError("", key, "fewer numbers", "too many to hold")
        level = (
            [(f"{place}[{i}]", item) for place, row in level for i, item in enumerate(row)]
            if size and isinstance(level[0][1][0], list)
            else []
        )


class _Archives:
    """The ``.npz`` files beside a case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, key: str, name: str, member: str) -> Array:
        if Path(name).name != name or name in ("", ".", "..") or not name.isprintable():
            raise BadInputError("", key, "an .npz file beside the case file", _shown(name))
        path = self.folder / name
        if not os.path.isfile(path):
            raise BadInputError("", key, f"the file {name} beside the case file", "no such file")
        try:
            return self.read_member(key, path, member)
        except BadInputError:
            raise
        except ValueError as error:
            raise BadInputError("", key, f"an array of numbers in {name}", str(error)) from None
        except Exception as error:  # a damaged archive raises whatever its parts raise
            found = f"an unreadable one ({error or type(error).__name__})"
            raise BadInputError("", key, f"an .npz file {name}", found) from None

    def read_member(self, key: str, path: Path, member: str) -> Array:
        with zipfile.ZipFile(path) as archive:
            entries = {item.filename.removesuffix(".npy"): item for item in archive.infolist()}
            if member not in entries:
                known = _shown(sorted(entries)) if entries else "none"
                raise BadInputError("", key, f"the array {_shown(member)} in {path.name}", f"the arrays {known}")
            size = entries[member].file_size
            if size > MAX_ARRAY_BYTES:
                raise BadInputError("", key, f"at most {MAX_ARRAY_BYTES} bytes in {path.name}", f"{size} bytes")
            with archive.open(entries[member]) as file:
                return _read_npy(file, size)


def _read_npy(file: IO[bytes], size: int) -> Array:
    """Read one array of ``size`` bytes, header included; ValueError for what is not numbers or not all there.

    ``numpy.load`` would allocate whatever the header claims before it looks for the data.
    """
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
    if version not in readers:
        raise ValueError(f"npy format {version}")
    shape, fortran, dtype = readers[version](file)  # type: ignore[no-untyped-call]
    if dtype.hasobject:
        raise ValueError("pickled objects, which are never read")
    if dtype.kind not in "fiu":
        raise ValueError(f"dtype {dtype}")
    wanted = math.prod(shape) * dtype.itemsize
    if wanted > size:
        raise ValueError(f"a header of shape {shape} over {size} bytes")
    data = file.read(wanted)
    if len(data) != wanted:
        raise ValueError(f"{len(data)} bytes of {wanted}")
    array: Array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    return array
