"""Apache MXNet, 1.x and 2.x: its RNN operator (both kernels), its gluon layers, and gluon cells unrolled.

The layout knowledge of MXNet lives here: the operator takes one flat parameter vector, all weights layer by layer and
direction by direction (input before hidden), then all biases in the same order (``src/operator/rnn-inl.h``). Its gate
order is the canonical one, so the conversion is packing alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.answers import SPECIAL, WROTE_INTO, Answer, Reply, Task
from bridge.arithmetic import Array
from bridge.backends.base import LiveBackend
from bridge.case import GATES, PARAM_NAMES, REQUESTABLE, Case, Weights
from bridge.config import added_environments
from bridge.errors import BadInputError, UnsupportedError
from bridge.limits import DROPOUT, LENGTHS, PROJECTION, not_covered
from bridge.options import Workaround
from bridge.workers import Launch

PINNED = "2.0.0b1"
DISTRIBUTIONS = ("mxnet", "mxnet-native")
"""What pip calls MXNet; the second is a build without oneDNN."""

BESIDE = (
    'numpy==1.23.5; python_version < "3.12"',
    'numpy==1.26.4; python_version >= "3.12"',
    'setuptools<81; python_version >= "3.12"',  # MXNet imports distutils
)
"""What pip installs beside an MXNet in an environment of its own, so that wheels of 1.x load too."""

KERNELS = ("native", "onednn")
VARIANTS = (
    "fused-onednn",
    "fused-native",
    "cached-native",
    "cached-onednn",
    "gluon-native",
    "gluon-onednn",
    "unrolled",
)
_WAYS = {
    "fused": "the RNN operator, called imperatively",
    "cached": "the RNN operator through CachedOp",
    "gluon": "the gluon layer, parameters' grad_req 'null' unless requested",
    "unrolled": "gluon cells unrolled step by step, no RNN operator",
}
_POOL = {1: 48, 2: 8, **dict.fromkeys(range(3, 33), 2), 64: 2, 128: 2, 256: 2}
"""Blocks to disturb, by their size in pages: the pool keeps what is freed by that, and hands out no other size."""

_PAGE = 4096

_LIFETIME = 4000
"""Answers of one process: 2.0.0b1 loses some 50 kB with each backward pass that it refuses."""

_REFUSAL = re.compile(r"not (?:yet )?(?:be )?(?:supported|implemented|available)|unsupported|only supports?\b", re.I)


# -- the parent's side -------------------------------------------------------------------------------------------


def backends() -> list[LiveBackend]:
    """Every variant of the MXNet that this Python has (or would have), then of those that ``gradbridge env`` added."""
    try:
        version, missing = importlib.metadata.version("mxnet"), ""
    except importlib.metadata.PackageNotFoundError:
        version, missing = PINNED, f"MXNet is not installed here; get it with: pip install mxnet=={PINNED}"
    lines = {f"mxnet-{version}": (sys.executable, missing)}
    for line, python in added_environments().items():
        if missing or line not in lines:
            lines[line] = python, ""
    return [backend for line, (python, why_not) in lines.items() for backend in variants(line, python, why_not)]


def variants(line: str, python: str, unavailable: str = "") -> list[LiveBackend]:
    """Every variant of one MXNet.

    Parameters
    ----------
    line : ``mxnet-<version>`` or ``mxnet-native-<version>``, what stands before the ``/`` of their names.
    python : the interpreter that has it.
    unavailable : why it has not, or empty.
    """
    isolated = {"PYTHONPATH": ""} if python != sys.executable else {}
    found = []
    for variant in VARIANTS:
        way, _, kernel = variant.partition("-")
        switched = kernel or "onednn"  # gluon cells do without the RNN operator; they go where there is less to do
        switch = {_switch(line): "1" if switched == "onednn" else "0"}
        found.append(
            LiveBackend(
                name=f"{line}/{variant}",
                about=_WAYS[way] + (f", {'oneDNN' if kernel == 'onednn' else 'native'} kernel" if kernel else ""),
                launch=Launch(
                    "bridge.backends.mxnet",
                    {},
                    {**isolated, **switch, "MXNET_CPU_WORKER_NTHREADS": "1"},
                    python=python,
                    lifetime=_LIFETIME,
                ),
                unavailable=unavailable,
                variant=variant,
                group=f"{line}, {switched} kernel",
                workarounds=_workarounds(way, kernel),
                understands=SPECIAL,
            )
        )
    return found


def _workarounds(way: str, kernel: str) -> tuple[Workaround, ...]:
    if kernel != "native":
        return ()
    return (
        Workaround("request the parameters' gradients too", request=("params",)),
        Workaround("use the oneDNN kernel", variant=f"{way}-onednn"),
        Workaround("unroll gluon cells", variant="unrolled"),
    )


def _switch(line: str) -> str:
    old = line.rpartition("-")[2].startswith("1.")
    return "MXNET_USE_MKLDNN_RNN" if old else "MXNET_USE_ONEDNN_RNN"


# -- layout ------------------------------------------------------------------------------------------------------


def flatten(params: Sequence[Sequence[Weights]]) -> Array:
    """Pack canonical parameters into the operator's vector, shape (P,)."""
    cells = [weights for directions in params for weights in directions]
    parts = [array for weights in cells for array in (weights.weight_ih, weights.weight_hh)]
    parts += [array for weights in cells for array in (weights.bias_ih, weights.bias_hh)]
    return np.concatenate([part.ravel() for part in parts])


def unflatten(vector: Array, shapes: Sequence[Sequence[Weights]]) -> tuple[tuple[Weights, ...], ...]:
    """Inverse of :func:`flatten`, for parameters shaped like ``shapes``. Gradients convert alike: it is a relabelling.

    Raises
    ------
    ValueError
        When the vector's length is not theirs.
    """
    cells = [weights for directions in shapes for weights in directions]
    parts = [array.shape for weights in cells for array in (weights.weight_ih, weights.weight_hh)]
    parts += [array.shape for weights in cells for array in (weights.bias_ih, weights.bias_hh)]
    ends = np.cumsum([int(np.prod(shape)) for shape in parts])
    if vector.shape != (ends[-1],):
        raise ValueError(f"a parameter vector of shape ({ends[-1]},) expected, found {vector.shape}")
    taken = [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), parts, strict=True)]
    count = len(cells)
    whole = [Weights(*taken[2 * i : 2 * i + 2], *taken[2 * (count + i) : 2 * (count + i) + 2]) for i in range(count)]
    directions = len(shapes[0])
    return tuple(tuple(whole[i : i + directions]) for i in range(0, count, directions))


def _by_name(params: Sequence[Sequence[Weights]]) -> dict[str, Any]:
    return {
        f"d{name}": tuple(tuple(getattr(weights, name) for weights in directions) for directions in params)
        for name in PARAM_NAMES
    }


def fields_from_gluon(layer: Any, x: Any, states: Any) -> dict[str, Any]:
    """Fields of a :class:`Case` out of a live gluon recurrent layer, by duck typing.

    Raises
    ------
    BadInputError
        For what a case cannot express.
    """
    where = f"gluon layer {type(layer).__name__}"
    mode = getattr(layer, "_mode", None)
    if mode not in GATES or not hasattr(layer, "_num_layers"):
        raise BadInputError(where, "", "a gluon.rnn RNN, LSTM or GRU layer", type(layer).__name__)
    for attribute, what in (
        ("_projection_size", PROJECTION),
        ("_dropout", DROPOUT),
        ("_lstm_state_clip_min", "clipping of the cell state"),
        ("_use_sequence_length", LENGTHS),
    ):
        if getattr(layer, attribute, None):
            raise not_covered(where, attribute.strip("_"), what, repr(getattr(layer, attribute)))
    sequence = _numpy(x)
    if sequence.ndim != 3:
        raise BadInputError(where, "x", f"a batch of sequences, layout {layer._layout}", f"shape {sequence.shape}")
    if layer._layout == "NTC":
        sequence = sequence.swapaxes(0, 1)
    layers, directions, hidden, inputs = layer._num_layers, layer._dir, layer._hidden_size, sequence.shape[2]
    rows = GATES[mode] * hidden
    shapes = [
        [
            Weights(
                *(
                    np.empty(shape)
                    for shape in ((rows, inputs if k == 0 else directions * hidden), (rows, hidden), (rows,), (rows,))
                )
            )
            for _ in range(directions)
        ]
        for k in range(layers)
    ]
    try:
        if hasattr(layer, "rnn_param"):  # 2.x: one flat parameter
            params = unflatten(_numpy(layer.rnn_param.data()), shapes)
        else:
            params = tuple(
                tuple(
                    Weights(
                        *(
                            _numpy(getattr(layer, f"{way}{k}_{name}").data())
                            for name in ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
                        )
                    )
                    for way in "lr"[:directions]
                )
                for k in range(layers)
            )
    except ValueError as error:
        raise BadInputError(where, "x", "the layer's input size", str(error)) from None
    except Exception as error:
        raise BadInputError(
            where, "", "a layer that was initialized and called once", str(error).partition("\n")[0]
        ) from None
    given = [
        _numpy(state) for state in (states if isinstance(states, (list, tuple)) else [states]) if state is not None
    ]
    zeros = np.zeros((layers * directions, sequence.shape[1], hidden), sequence.dtype)
    fields = {
        "name": f"gluon-{mode}",
        "source": f"taken out of a gluon {type(layer).__name__} layer",
        "mode": mode,
        "dtype": str(params[0][0].weight_ih.dtype),
        "x": sequence,
        "params": params,
        "h0": given[0] if given else zeros,
        "requested": ("x", "params", "h0"),
    }
    if mode == "lstm":
        fields |= {"c0": given[1] if len(given) > 1 else zeros, "requested": ("x", "params", "h0", "c0")}
    return fields


def _numpy(array: Any) -> Array:
    result: Array = array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)
    return result


# -- a script of its own ------------------------------------------------------------------------------------------


def script_fields(way: str, task: Task, version: str) -> dict[str, Any]:
    """What the template of a standalone script says of a task: arrays, options and calls, for one way of calling."""
    case = task.case
    given, heads = task.inputs()
    old = version.startswith("1.")
    flat = way in ("fused", "cached") or (way == "gluon" and not old)
    shapes = {"x": "(T, B, I)", "h0": "(layers * directions, B, H)", "c0": "(layers * directions, B, H)"}
    arrays = [(name, shapes[name], array) for name, array in given.items()]
    if flat:
        arrays.append(
            ("params", "weights cell by cell, input before hidden; then the biases alike", flatten(case.params))
        )
    named = [(f"head_{name}", array) for name, array in zip(("y", "h", "c"), heads, strict=True) if array is not None]
    arrays += [(name, "head gradients", array) for name, array in named]
    kind = {"lstm": "LSTM", "gru": "GRU"}.get(case.mode, "RNN")
    word = case.mode.removeprefix("rnn_")
    activation = f", activation={word!r}" if kind == "RNN" else ""
    outputs = [place for place, head in enumerate(heads) if head is not None]
    to_array = "mx.nd.array" if old or way in ("fused", "cached") else "mx.np.array"
    return {
        "way": way,
        "arrays": arrays,
        "weights": case.params if way == "unrolled" or (way == "gluon" and old) else (),
        "inputs": ["x", "params", *(name for name in given if name != "x")],
        "requested": tuple(case.requested),
        "grad_req": _request(task),
        "accumulate": task.accumulate,
        "training": task.training,
        "options": {
            "mode": case.mode,
            "state_size": case.hidden_size,
            "num_layers": case.layers,
            "bidirectional": case.bidirectional,
            "state_outputs": True,
        },
        "outputs": ", ".join(f"outputs[{place}]" for place in outputs),
        "heads": ", ".join(f"{to_array}({name}, dtype=DTYPE)" for name, _ in named),
        "xp": "mx.nd" if old else "mx.np",
        "layer": f"{kind}({case.hidden_size}, {case.layers}, bidirectional={case.bidirectional}, "
        f"input_size={case.input_size}, dtype=DTYPE{activation})",
        "flat": flat,
        "cells": [
            [
                f"mx.gluon.rnn.{kind}Cell({case.hidden_size}, input_size={weights.weight_ih.shape[1]}"
                + {"RNN": f", activation={'Identity()' if word == 'identity' else repr(word)}"}.get(kind, "")
                + ")"
                for weights in directions
            ]
            for directions in case.params
        ],
        "steps": task.seq_len,
    }


def packed(
    way: str, expected: Sequence[tuple[str, list[Array], float]], case: Case, version: str
) -> list[tuple[str, Array, float]]:
    """Expected quantities as a script finds them: sequences and states as they are, parameters in MXNet's layout."""
    found = [(quantity, parts[0], slack) for quantity, parts, slack in expected if quantity in _SEQUENCES]
    params = {quantity: (parts, slack) for quantity, parts, slack in expected if quantity not in _SEQUENCES}
    if not params:
        return found
    if way in ("fused", "cached") or (way == "gluon" and not version.startswith("1.")):
        cells = zip(*(params[f"d{name}"][0] for name in PARAM_NAMES), strict=True)
        slack = max(slack for _, slack in params.values())
        return [*found, ("dparams", flatten([[Weights(*cell) for cell in cells]]), slack)]
    for quantity, (parts, own) in params.items():
        name = _GLUON_NAMES[PARAM_NAMES.index(quantity[1:])]
        for place, part in enumerate(parts):
            layer, direction = divmod(place, case.directions)
            found.append((f"d{layer}.{direction}.{name}", part, own))
    return found


_SEQUENCES = ("y", "dx", "dh0", "dc0")


# -- the worker's side -------------------------------------------------------------------------------------------


def open_backend() -> MXNet:
    """Import MXNet in this process."""
    return MXNet()


class MXNet:
    """The variants that one value of MXNet's switch serves; the worker's environment already holds it."""

    def __init__(self) -> None:
        _numpy_of_its_day()
        import mxnet

        self.mx = mxnet
        self.poison = 0
        self.largest = 0
        self.last: tuple[Task, str] | None = None
        features = mxnet.runtime.Features()
        self.onednn = any(name in features and features.is_enabled(name) for name in ("ONEDNN", "MKLDNN"))
        self.info = {
            "framework": "mxnet",
            "version": importlib.metadata.version(next(name for name in ("mxnet", "mxnet-native") if _installed(name))),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "onednn": "yes" if self.onednn else "no",
        }
        self.ways: dict[str, Callable[[Task], Reply]] = {
            "fused": functools.partial(self._operator, cached=False),
            "cached": functools.partial(self._operator, cached=True),
            "gluon": self._gluon,
            "unrolled": self._unrolled,
        }

    def disturb(self) -> None:
        """Leave values in memory that a kernel would show if it read before writing; others each time.

        Garbage that is the same in both calls would look repeatable. The operator's workspace does not come from the
        pool, so a call of the same shapes is made in between.
        """
        self.poison += 1
        self._stir()
        library, new, device = self.mx.base._LIB, self.mx.nd.ndarray._new_alloc_handle, self.mx.cpu()
        byte = 0x41 + self.poison % 6  # as a float32 between 12 and 13,000, as a float64 up to 4e30
        sizes = [pages * _PAGE for pages, blocks in _POOL.items() for _ in range(blocks)]
        held = [(new((size // 4,), device, False), size) for size in sizes if size <= self.largest]
        place = ctypes.c_void_p()
        for handle, size in held:  # arrays, filled by an operator, would cost ten times the gradients
            library.MXNDArrayGetData(handle, ctypes.byref(place))
            ctypes.memset(place, byte, size)
        for handle, _ in held:
            library.MXNDArrayFree(handle)

    def _stir(self) -> None:
        """Call the operator as it was called last, with everything requested and other inputs."""
        if self.last is None or self.last[0].case.layers == 1:
            return
        task, variant = self.last
        case = task.case
        every = REQUESTABLE if case.mode == "lstm" else REQUESTABLE[:3]
        other = case.replace(requested=every, x=case.x + np.float32(1 + self.poison % 7 / 8), head="ones")
        with contextlib.suppress(Exception):  # whatever it says, it was not asked
            self.ways[variant.partition("-")[0]](dataclasses.replace(task, case=other, accumulate=1, malformed=""))

    def run(self, task: Task, variant: str) -> Reply:
        """Compute what the case requests, with exactly that attached."""
        case = task.case
        way, _, kernel = variant.partition("-")
        if way != "unrolled" and case.mode == "rnn_identity":
            raise UnsupportedError("MXNet's RNN operator has no identity activation")
        if kernel == "onednn" and case.dtype == "float64":
            raise UnsupportedError("oneDNN serves float32 only; MXNet would run its native kernel instead")
        if kernel == "onednn" and not self.onednn:
            raise UnsupportedError("this MXNet is built without oneDNN; it would run its native kernel instead")
        self.last = (task, variant) if way != "unrolled" else None
        self.largest = max(self.largest, _largest(case))
        try:
            return self.ways[way](task)
        except self.mx.base.MXNetError as error:
            said = [line.strip() for line in str(error).splitlines() if line.strip()]
            words = next((line for line in said if _REFUSAL.search(line)), None)
            if words is None:
                raise RuntimeError(said[-1] if said else "MXNetError") from None  # its first line is a traceback's
            raise UnsupportedError(re.sub(r"^.*?Error: ", "", words)) from None
        finally:
            self._drain()

    def _drain(self) -> None:
        """Let go of what is still to be raised, one error at a time; it belongs to this task and to no later one."""
        for _ in range(100):
            try:
                self.mx.nd.waitall()
            except self.mx.base.MXNetError:
                continue
            return

    def _reply(
        self, case: Case, y: Any, grads: Mapping[str, Any], handed: Mapping[str, Any], given: Mapping[str, Array]
    ) -> Reply:
        """Read everything (MXNet raises late) and look whether an input was written into."""
        answers = {"y": Answer(y.asnumpy())}
        for quantity in case.quantities[1:]:
            value = grads[quantity]
            answers[quantity] = Answer(value if isinstance(value, (tuple, np.ndarray)) else value.asnumpy())
        self.mx.nd.waitall()  # what else may be raised late belongs to this task
        notes = tuple(
            f"MXNet {WROTE_INTO} {name}"
            for name, array in handed.items()
            if array.asnumpy().tobytes() != np.ascontiguousarray(given[name], case.dtype).tobytes()
        )
        return Reply(answers, notes)

    def _passes(self, task: Task, xp: Any, heads: Sequence[Array | None], call: Callable[[], list[Any]]) -> list[Any]:
        """Run forward and backward as often as asked, and return the last outputs."""
        autograd, dtype = self.mx.autograd, task.case.dtype
        outputs: list[Any] = []
        for _ in range(task.accumulate):
            with autograd.record(train_mode=task.training):
                outputs = call()
            given = [(output, head) for output, head in zip(outputs, heads, strict=False) if head is not None]
            cotangents = [xp.array(head, dtype=dtype) for _, head in given]
            autograd.backward([output for output, _ in given], cotangents, train_mode=task.training)
        return outputs

    # -- the RNN operator ----------------------------------------------------------------------------------------

    def _operator(self, task: Task, cached: bool) -> Reply:
        nd, case = self.mx.nd, task.case
        given, heads = task.inputs()
        given = {"x": given.pop("x"), "params": flatten(case.params), **given}
        arrays = {name: nd.array(value, dtype=case.dtype) for name, value in given.items()}
        for name in case.requested:
            arrays[name].attach_grad(_request(task))
        options = {
            "mode": case.mode,
            "state_size": case.hidden_size,
            "num_layers": case.layers,
            "bidirectional": case.bidirectional,
            "state_outputs": True,
        }
        if cached:
            symbols = [self.mx.sym.var(name) for name in arrays]
            call = self.mx.nd.CachedOp(self.mx.sym.RNN(*symbols, **options))
        else:

            def call(*inputs: Any) -> Any:
                return nd.RNN(*inputs, **options)

        outputs = self._passes(task, nd, heads, lambda: call(*arrays.values()))
        grads = {f"d{name}": array.grad for name, array in arrays.items() if name in case.requested}
        if "params" in case.requested:
            grads |= _by_name(unflatten(grads.pop("dparams").asnumpy(), case.params))
        return self._reply(case, outputs[0], grads, arrays, given)

    # -- the gluon layer -----------------------------------------------------------------------------------------

    def _gluon(self, task: Task) -> Reply:
        mx, xp, case = self.mx, self._frontend(), task.case
        given, heads = task.inputs()
        kind = {"lstm": "LSTM", "gru": "GRU"}.get(case.mode, "RNN")
        activation = {"activation": case.mode.removeprefix("rnn_")} if kind == "RNN" else {}
        layer = getattr(mx.gluon.rnn, kind)(
            case.hidden_size,
            case.layers,
            bidirectional=case.bidirectional,
            input_size=case.input_size,
            dtype=case.dtype,
            **activation,
        )
        arrays = {name: xp.array(value, dtype=case.dtype) for name, value in given.items()}
        layer.initialize()
        flat = hasattr(layer, "rnn_param")
        if flat:
            layer.infer_shape(arrays["x"])
            layer.rnn_param._finish_deferred_init() if layer.rnn_param._deferred_init else None
            parameters = {"params": (layer.rnn_param, flatten(case.params))}
        else:
            parameters = {
                f"{way}{k}_{name}": (getattr(layer, f"{way}{k}_{name}"), array)
                for k, directions in enumerate(case.params)
                for way, weights in zip("lr", directions, strict=False)
                for name, array in zip(_GLUON_NAMES, weights, strict=True)
            }
        self._load(parameters, task)
        for name in case.requested:
            if name != "params":
                arrays[name].attach_grad(_request(task))

        def call() -> list[Any]:
            y, states = layer(arrays["x"], [arrays[name] for name in ("h0", "c0") if name in arrays])
            return [y, *states]

        y = self._passes(task, xp, heads, call)[0]
        grads = {f"d{name}": arrays[name].grad for name in case.requested if name != "params"}
        if "params" in case.requested:
            if flat:
                grads |= _by_name(unflatten(layer.rnn_param.grad().asnumpy(), case.params))
            else:
                grads |= _by_name(
                    [
                        [
                            Weights(*(parameters[f"{way}{k}_{name}"][0].grad().asnumpy() for name in _GLUON_NAMES))
                            for way in "lr"[: case.directions]
                        ]
                        for k in range(case.layers)
                    ]
                )
        return self._reply(case, y, grads, arrays, given)

    def _load(self, parameters: Mapping[str, tuple[Any, Array]], task: Task) -> None:
        for parameter, value in parameters.values():
            parameter.grad_req = _request(task) if "params" in task.case.requested else "null"
            parameter.set_data(self._frontend().array(value, dtype=task.case.dtype))

    def _frontend(self) -> Any:
        """The array module that gluon works with: ``mx.np`` from 2.0, ``mx.nd`` before."""
        return self.mx.nd if self.mx.__version__.startswith("1.") else self.mx.np

    # -- gluon cells ---------------------------------------------------------------------------------------------

    def _unrolled(self, task: Task) -> Reply:
        xp, case = self._frontend(), task.case
        if task.malformed.startswith(("h0[0]", "c0[0]")):
            raise UnsupportedError("cells take their states one by one")
        given, heads = task.inputs()
        arrays = {name: xp.array(value, dtype=case.dtype) for name, value in given.items()}
        cells = [[self._cell(task, weights) for weights in directions] for directions in case.params]
        for name in case.requested:
            if name != "params":
                arrays[name].attach_grad(_request(task))
        outputs = self._passes(task, xp, heads, lambda: self._unroll(cells, arrays, len(given["x"])))
        grads = {f"d{name}": arrays[name].grad for name in case.requested if name != "params"}
        if "params" in case.requested:
            grads |= _by_name(
                [
                    [Weights(*(getattr(cell, name).grad().asnumpy() for name in _GLUON_NAMES)) for cell in directions]
                    for directions in cells
                ]
            )
        return self._reply(case, outputs[0], grads, arrays, given)

    def _unroll(self, cells: Sequence[Sequence[Any]], arrays: Mapping[str, Any], steps: int) -> list[Any]:
        """Outputs and final states."""
        mx, xp = self.mx, self._frontend()
        below, finals = arrays["x"], []
        for layer, directions in enumerate(cells):
            start = [
                arrays[name][layer * len(directions) + direction]
                for direction in range(len(directions))
                for name in ("h0", "c0")
                if name in arrays
            ]
            whole = directions[0] if len(directions) == 1 else mx.gluon.rnn.BidirectionalCell(*directions)
            below, states = whole.unroll(steps, below, begin_state=start, layout="TNC", merge_outputs=True)
            finals += states
        stack = xp.stack if hasattr(mx, "np") and xp is mx.np else lambda states: mx.nd.stack(*states)
        per_cell = 2 if "c0" in arrays else 1
        return [below, *(stack(finals[kind::per_cell]) for kind in range(per_cell))]

    def _cell(self, task: Task, weights: Weights) -> Any:
        rnn, case = self.mx.gluon.rnn, task.case
        size, inputs = case.hidden_size, weights.weight_ih.shape[1]
        if case.mode == "lstm":
            cell = rnn.LSTMCell(size, input_size=inputs)
        elif case.mode == "gru":
            cell = rnn.GRUCell(size, input_size=inputs)
        else:
            word = case.mode.removeprefix("rnn_")  # a cell takes a callable for identity, not the word
            cell = rnn.RNNCell(size, activation=_identity if word == "identity" else word, input_size=inputs)
        cell.cast(case.dtype)
        cell.initialize()
        named = {name: (getattr(cell, name), array) for name, array in zip(_GLUON_NAMES, weights, strict=True)}
        self._load(named, task)
        return cell


_GLUON_NAMES = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")


def _largest(case: Case) -> int:
    """Return no less than the bytes of the largest block that a call for the case takes from the pool, in whole pages.

    That is the parameters', or what the operator keeps for its backward pass, most of all for a GRU of L layers: (9 L +
    6) T B D H + 9 B D H + 6 T H numbers (``GetRNNReserveSpaceSize`` in ``src/operator/rnn-inl.h``).
    """
    width = max(case.input_size, case.hidden_size)
    kept = (9 * case.layers + 12) * (case.seq_len + 1) * case.batch * case.directions * width
    params = sum(array.size for directions in case.params for weights in directions for array in weights)
    return -(-max(kept, params) * case.x.itemsize // _PAGE) * _PAGE


def _request(task: Task) -> str:
    """MXNet's ``grad_req`` for a backward pass that is run so many times."""
    return "add" if task.accumulate > 1 else "write"


def _identity(inputs: Any, name: str = "") -> Any:  # 1.x gives it a name
    return inputs


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _numpy_of_its_day() -> None:
    """Give NumPy back the alias that MXNet reads at import and later, and that NumPy 1.24 dropped."""
    if "bool" not in vars(np):
        np.bool = np.bool_  # type: ignore[attr-defined, unused-ignore]
