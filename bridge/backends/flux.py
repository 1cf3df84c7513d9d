"""Julia's Flux through juliacall: live in a worker process, or recorded.

The layout knowledge of Flux lives here and in ``julia/``: Flux has one bias ``b`` where the canonical cell has two, and
its GRU keeps that bias outside the reset gate's product. So ``b = bias_ih + bias_hh`` for RNN and LSTM (and for a GRU's
r and z rows), and a GRU's n rows want ``bias_hh = 0``. By the chain rule both canonical biases get ``db``; a GRU's
``dbias_hh`` has no counterpart in its n rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bridge.answers import CRASHED, Answer, Reply, Task, first_line
from bridge.arithmetic import Array
from bridge.backends.base import Session, WorkerSession, shared
from bridge.backends.recorded import Recording
from bridge.case import Case
from bridge.config import cache_folder
from bridge.errors import BadInputError, UnsupportedError
from bridge.options import Workaround
from bridge.workers import Launch, Worker, WorkerError

_PACKAGE = Path(__file__).resolve().parent.parent
JULIA = next(
    (folder for folder in (_PACKAGE / "_julia", _PACKAGE.parent / "julia") if (folder / "Project.toml").exists()),
    _PACKAGE.parent / "julia",
)
"""The Julia package FluxBridge: inside an installed gradbridge, or beside it in a checkout."""

MANAGED = {"0.14": "0.14.25", "0.16": "0.16.5"}
"""Lines that juliapkg installs by itself, with the exact Flux of each."""

JIT_TIMEOUT = 600.0
"""Seconds a task may take by default: the first call of a variant is compiled."""

INTERPRET = "GRADBRIDGE_FLUX_INTERPRET"
"""Environment variable; where it is set, Julia interprets what it would compile for a single question."""

TELLING = (
    "recur-broadcast-implicit",
    "recur-broadcast-explicit",
    "recur-comprehension-explicit",
    "chain-broadcast-implicit-weights",
    "closure-broadcast-explicit-struct",
    "closure-comprehension-explicit-struct",
    "cell-for-explicit",
    "layer-sequence-explicit",
)
"""Variants that a comparison shows by default; the whole matrix belongs to ``gradbridge flux``."""

_SIGNALS = {"PYTHON_JULIACALL_HANDLE_SIGNALS": "yes", "PYTHON_JULIACALL_THREADS": "1", "JULIA_NUM_THREADS": "1"}
# as juliacall's documentation asks of a process whose signals Julia may need


class Name(NamedTuple):
    """A variant's name taken apart; ``docs/flux.md`` has the grammar."""

    model: str
    application: str
    api: str
    requested: str
    reset: str
    holder: str

    @classmethod
    def parse(cls, variant: str) -> Name:
        """Take a name apart."""
        model, application, api, *rest = variant.split("-")
        suffix = "-".join(rest)
        weights = suffix.startswith("weights")
        suffix = suffix.removeprefix("weights").lstrip("-")
        reset = {"inside": "inside", "stale": "none"}.get(suffix, "before")
        holder = "" if suffix in ("inside", "stale") else suffix
        return cls(model, application, api, "weights" if weights else "weights+state", reset, holder)


# -- layout ------------------------------------------------------------------------------------------------------


def merged_biases(case: Case) -> list[Array]:
    """Flux's bias of each layer.

    Raises
    ------
    UnsupportedError
        For a GRU whose ``bias_hh`` is not zero in its n rows.
    """
    biases = []
    for layer, (weights,) in enumerate(_one_direction(case)):
        if case.mode == "gru" and np.any(weights.bias_hh[2 * case.hidden_size :]):
            raise UnsupportedError(
                f"Flux's GRU keeps its bias outside the reset gate's product: bias_hh of layer {layer} must be zero in "
                "its n rows"
            )
        biases.append(weights.bias_ih + weights.bias_hh)
    return biases


def _one_direction(case: Case) -> Sequence[Sequence[Any]]:
    if case.bidirectional:
        raise UnsupportedError("Flux has no bidirectional layer in any of its lines")
    return case.params


def interpret(case: Case, variant: str, raw: Mapping[str, Any]) -> Reply:
    """Turn what FluxBridge returned (keys ``y``, ``dWi``, ``dWh``, ``db``, ``dx``, ``dh0``, ...) into answers.

    An absent key was never asked of Flux; ``None`` is Zygote's ``nothing``.
    """
    name = Name.parse(variant)
    answers = {}
    for quantity in case.quantities:
        if quantity in ("dh0", "dc0"):
            answers[quantity] = _state(quantity, name, raw)
        elif quantity.startswith("dbias"):
            answers[quantity] = _bias(case, quantity, name, raw)
        else:
            key = {"dweight_ih": "dWi", "dweight_hh": "dWh"}.get(quantity, quantity)
            answers[quantity] = _plain(quantity, key, name, raw)
    start = {name: np.asarray(raw[key]) for name, key in (("h0", "start_h"), ("c0", "start_c")) if key in raw}
    note = ("started from the state that an earlier call left behind, as this variant asks",) if start else ()
    return Reply(answers, note, start or None)


def _plain(quantity: str, key: str, name: Name, raw: Mapping[str, Any]) -> Answer:
    if key not in raw:
        if quantity == "y":
            return Answer(verdict="unavailable", reason="the recording holds no outputs")
        return Answer(verdict="unsupported", reason=f"the {name.api} API is not asked for {quantity} here")
    value = raw[key]
    if isinstance(value, (list, tuple)):
        if any(block is None for block in value):
            gone = [str(layer) for layer, block in enumerate(value) if block is None]
            return Answer(nothing=True, reason=f"nothing for layer {' '.join(gone)}" if len(value) > 1 else "")
        return Answer(tuple((np.asarray(block),) for block in value))
    return Answer(nothing=True) if value is None else Answer(np.asarray(value))


def _bias(case: Case, quantity: str, name: Name, raw: Mapping[str, Any]) -> Answer:
    found = _plain(quantity, "db", name, raw)
    if found.values is None or case.mode != "gru" or quantity == "dbias_ih":
        return found
    blocks = tuple((block.copy(),) for (block,) in found.values)
    for (block,) in blocks:
        block[2 * case.hidden_size :] = np.nan
    return dataclasses.replace(found, values=blocks, inexpressible=True)


def _state(quantity: str, name: Name, raw: Mapping[str, Any]) -> Answer:
    field = {"dh0": "dstate_h", "dc0": "dstate_c"}[quantity]
    own, kept = _stacked(raw.get(quantity)), _stacked(raw.get(field))
    summed = bool(raw.get("batch_summed", False))
    if own is not None:
        return Answer(own, batch_summed=own.shape[1] == 1 and summed)
    if kept is not None:
        return Answer(
            kept, batch_summed=kept.shape[1] == 1 and summed, reason="found in the gradient of the model's state field"
        )
    if name.reset == "none":
        return Answer(verdict="unsupported", reason="the carried state is a constant of this run")
    if quantity not in raw and field not in raw:
        return Answer(verdict="unsupported", reason=f"the initial state is not among what is asked ({name.requested})")
    return Answer(nothing=True)


def _stacked(value: Any) -> Array | None:
    """A state's gradient as (layers, batch, hidden); (layers, hidden) is summed over the batch."""
    if value is None or (isinstance(value, (list, tuple)) and any(block is None for block in value)):
        return None
    array: Array = np.asarray(value)
    return array[:, None] if array.ndim == 2 else array


# -- the parent's side -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Line:
    """One Flux, live in a Julia environment of its own, or to be.

    Attributes
    ----------
    origin : where it comes from, for people.
    launch : how its worker starts.
    version : Flux's, or empty while nobody has looked.
    variants : what it can do; empty while nobody has looked.
    seconds : what its last start took.
    installed : whether a start needs no download.
    """

    origin: str
    launch: Launch
    version: str = ""
    variants: tuple[str, ...] = ()
    seconds: float | None = None
    installed: bool = True


def managed_lines() -> list[Line]:
    """The lines that juliapkg installs on first use."""
    lines = []
    for key, version in MANAGED.items():
        project = cache_folder() / f"flux-{key}"
        launch = Launch(
            "bridge.backends.flux",
            {"julia": str(JULIA)},
            {**_SIGNALS, "PYTHON_JULIAPKG_PROJECT": str(project)},
            path=(str(JULIA / "envs" / key),),
            start_timeout=3600.0,
        )
        installed = (project / "pyjuliapkg" / "meta.json").exists()
        lines.append(_known(Line(f"juliapkg, in {project}", launch, version, installed=installed)))
    return lines


def named_lines(julia_project: str | None = None, config: Sequence[Mapping[str, Any]] = ()) -> list[Line]:
    """Lines in environments that the user names: on the command line, by juliacall's variables, or in the config.

    Raises
    ------
    BadInputError
        For a project or interpreter that is not there.
    """
    lines = []
    exe, project = os.environ.get("PYTHON_JULIACALL_EXE"), os.environ.get("PYTHON_JULIACALL_PROJECT")
    if julia_project is not None:
        lines.append(_named("--julia-project", {"project": julia_project, **({"julia": exe} if exe else {})}))
    elif exe and project:
        lines.append(_named("PYTHON_JULIACALL_EXE and PYTHON_JULIACALL_PROJECT", {"julia": exe, "project": project}))
    return lines + [_named(f"config, flux entry {index}", entry) for index, entry in enumerate(config)]


def _named(origin: str, entry: Mapping[str, Any]) -> Line:
    julia = entry.get("julia") or shutil.which("julia")
    if not julia:
        raise BadInputError(origin, "julia", "a Julia on PATH, or its path in PYTHON_JULIACALL_EXE", "none")
    if shutil.which(julia) is None:
        raise BadInputError(origin, "julia", "a Julia program", repr(julia))
    project = Path(entry["project"]).expanduser().resolve()
    if not project.is_dir():
        raise BadInputError(origin, "project", "the folder of a Julia project with Flux", repr(str(project)))
    python = entry.get("python") or sys.executable
    if shutil.which(python) is None:
        raise BadInputError(origin, "python", "a Python with juliacall", repr(python))
    env = {"PYTHON_JULIACALL_EXE": str(julia), "PYTHON_JULIACALL_PROJECT": str(project)}
    launch = Launch(
        "bridge.backends.flux",
        {"julia": str(JULIA)},
        {**_SIGNALS, **env, **entry.get("env", {})},
        python=str(python),
        start_timeout=1800.0,
    )
    return _known(Line(origin, launch))


def look(line: Line, says: Callable[[str], None] | None = None) -> Line:
    """Start a line once to learn its version and variants, and remember them.

    Raises
    ------
    bridge.workers.WorkerError
        When it does not start.
    """
    worker = Worker(line.launch, JIT_TIMEOUT, says)
    began = time.monotonic()
    try:
        info = worker.start()
    finally:
        worker.stop()
    return remember(line, info, time.monotonic() - began)


def remember(line: Line, info: Mapping[str, str], seconds: float) -> Line:
    """Note what a start showed, for the next run's names and the seconds to expect."""
    known = _memory()
    facts: dict[str, Any] = {
        "version": info["version"],
        "variants": info["variants"].split(),
        "seconds": round(seconds, 1),
    }
    known[_fingerprint(line.launch)] = facts
    path = cache_folder() / "lines.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".lines.{os.getpid()}")
        temporary.write_text(json.dumps(known, indent=1, sort_keys=True))
        os.replace(temporary, path)
    except OSError:
        pass  # only convenience is lost
    return dataclasses.replace(line, version=facts["version"], variants=tuple(facts["variants"]), seconds=seconds)


def _known(line: Line) -> Line:
    facts = _memory().get(_fingerprint(line.launch))
    if facts is None:
        return line
    return dataclasses.replace(
        line, version=facts["version"], variants=tuple(facts["variants"]), seconds=facts["seconds"]
    )


def _memory() -> dict[str, Any]:
    try:
        known = json.loads((cache_folder() / "lines.json").read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _fingerprint(launch: Launch) -> str:
    manifest = Path(launch.env.get("PYTHON_JULIACALL_PROJECT", "")) / "Manifest.toml"
    stamp = manifest.stat().st_mtime_ns if manifest.is_file() else 0
    text = json.dumps([launch.python, dict(launch.options), sorted(launch.env.items()), launch.path, stamp])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class FluxBackend:
    """A variant of a live line. All variants of a line share its worker process."""

    line: Line
    variant: str
    source: str = "live"
    understands: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``flux-<version>/<variant>``."""
        return f"flux-{self.line.version}/{self.variant}"

    @property
    def about(self) -> str:
        """One line on what it does."""
        return about(self.variant)

    @property
    def group(self) -> str:
        """The worker that it shares."""
        return _fingerprint(self.line.launch)

    @property
    def workarounds(self) -> tuple[Workaround, ...]:
        """Other applications, and the cell with explicit state."""
        return workarounds(self.variant)

    @property
    def varies(self) -> bool:
        """No: every new element type or length of a variant is compiled first."""
        return False

    @property
    def launch(self) -> Launch:
        """How the line's worker starts."""
        return self.line.launch

    def open(
        self,
        timeout: float | None,
        says: Callable[[str], None] | None = None,
        workers: dict[str, Worker] | None = None,
    ) -> Session:
        """Begin, in the line's worker."""
        return FluxSession(self, shared(workers, self.group, self.launch, timeout or JIT_TIMEOUT, says))


class FluxSession(WorkerSession):
    """One variant's view of its line's worker."""

    def __init__(self, backend: FluxBackend, worker: Worker) -> None:
        super().__init__(worker, backend.variant)
        self.backend = backend

    def start(self) -> dict[str, str]:
        """Start the line's worker if need be; the Flux in it must still be the one it was named after."""
        fresh = self.worker.info is None
        began = time.monotonic()
        info = self.worker.start()
        if info["version"] != self.backend.line.version:
            raise WorkerError("unavailable", f"this environment now holds Flux {info['version']}")
        if fresh:
            remember(self.backend.line, info, time.monotonic() - began)
        return {key: value for key, value in info.items() if key != "variants"}


def about(variant: str) -> str:
    """Say in a line what a variant does."""
    name = Name.parse(variant)
    model = {
        "recur": "Flux.Recur(cell)",
        "chain": "Chain(Flux.Recur(cell))",
        "closure": "a hand-written stateful callable",
        "cell": "the cell with explicit state",
        "layer": "the layer over a whole sequence",
    }.get(name.model, name.model)
    applied = {
        "broadcast": "m.(xs)",
        "comprehension": "[m(x) for x in xs]",
        "map": "map(m, xs)",
        "for": "a for loop",
        "sequence": "once",
        "array3d": "m(x) on a 3-d array",
    }.get(name.application, name.application)
    gradient = "gradient(m -> ..., m)" if name.api == "explicit" else "gradient(() -> ..., params)"
    extra = [f"state held in {name.holder}"] if name.holder else []
    if name.reset != "before":
        extra.append("reset! inside the loss" if name.reset == "inside" else "no reset after an earlier call")
    if name.requested == "weights":
        extra.append("initial state not among the params")
    return ", ".join([f"{model} by {applied}", gradient, *extra])


def workarounds(variant: str) -> tuple[Workaround, ...]:
    """What a user of this variant could do instead."""
    name = Name.parse(variant)
    rest = variant.removeprefix(f"{name.model}-{name.application}")
    swaps = [
        Workaround(f"apply it by {words}", variant=f"{name.model}-{application}{rest}")
        for application, words in (("map", "map"), ("for", "a for loop"))
        if name.application not in ("map", "for", "sequence")
    ]
    return (
        *swaps,
        Workaround("use the cell with explicit state", variant=f"cell-for-{name.api}"),
        Workaround("use the layer over the whole sequence", variant="layer-sequence-explicit"),
    )


def live_backends(lines: Iterable[Line]) -> list[FluxBackend]:
    """Every variant of every line that is known by version."""
    return [FluxBackend(line, variant) for line in lines if line.version for variant in line.variants]


def recorded_variants(recordings: Iterable[Recording], version: str) -> tuple[str, ...]:
    """Variants that a recording knows of a version; what a line is known to offer before it ever started."""
    return next((recording.variants for recording in recordings if recording.line == f"flux-{version}"), ())


# -- a script of its own ------------------------------------------------------------------------------------------


def script_fields(variant: str, case: Case, version: str) -> dict[str, Any]:
    """What the template of a standalone script says of a case, in the way of one variant; Julia text.

    Parameters
    ----------
    variant, version : of Flux.
    case : run over its whole ``x``.

    Raises
    ------
    UnsupportedError
        For a case that Flux cannot express.
    """
    return _Script(variant, case, version).fields()


def packed(
    variant: str, expected: Iterable[tuple[str, list[Array], float]], case: Case, version: str
) -> list[tuple[str, str, float]]:
    """Expected quantities by the names that a script gives them, as Julia literals."""
    script = _Script(variant, case, version)
    found: list[tuple[str, str, float]] = []
    for quantity, parts, slack in expected:
        if quantity == "dx":
            found += [(f"dx[{t}]", script.literal(step.T), slack) for t, step in enumerate(parts[0], 1)]
        elif quantity in ("dh0", "dc0"):
            states = zip(script.suffixes, parts[0], strict=True)
            found += [
                (f"{quantity}{suffix}", script.literal(state.sum(0) if script.vector else state.T), slack)
                for suffix, state in states
            ]
        elif quantity in _WEIGHT_NAMES:
            name = _WEIGHT_NAMES[quantity]
            blocks = zip(script.suffixes, parts, strict=True)
            found += [(f"{name}{suffix}", script.literal(block), slack) for suffix, block in blocks]
    return found


_WEIGHT_NAMES = {"dweight_ih": "dWi", "dweight_hh": "dWh", "dbias_ih": "db"}


class _Script:
    """A case and a variant in Julia's words."""

    def __init__(self, variant: str, case: Case, version: str) -> None:
        self.name, self.case = Name.parse(variant), case
        self.line = _line(version)
        self.biases = merged_biases(case)
        name = self.name
        self.many = case.layers > 1
        self.suffixes = [str(layer) for layer in range(1, case.layers + 1)] if self.many else [""]
        self.flux_cells = name.model != "closure" or (name.holder == "struct" and self.line < 14)
        self.vector = self.line == 11 and (name.model != "closure" or name.holder == "struct")
        if name.holder == "global" and name.model != "chain" and self.many:
            raise UnsupportedError("one global is one layer here")
        if self.vector and any(state is not None and np.any(state != state[:, :1]) for state in (case.h0, case.c0)):
            raise UnsupportedError("Flux 0.11 has one initial state for the whole batch")

    def literal(self, array: Array) -> str:
        """A vector or matrix of its dtype."""
        kind = str(array.dtype).capitalize()
        if array.ndim == 1:
            return f"{kind}[{', '.join(map(_number, array))}]"
        if array.shape[1] == 1:
            return f"reshape({kind}[{', '.join(map(_number, array[:, 0]))}], {len(array)}, 1)"
        rows = [" ".join(map(_number, row)) for row in array]
        text = f"{kind}[{'; '.join(rows)}]"
        if len(text) <= 100:
            return text
        return f"{kind}[\n" + "".join(f"    {row}\n" for row in rows) + "]"

    def fields(self) -> dict[str, Any]:
        """Everything that the template asks for."""
        name, case = self.name, self.case
        lstm = case.mode == "lstm"
        recurs = name.model == "recur" and self.many
        return {
            "name": name,
            "line": self.line,
            "T": case.dtype.capitalize(),
            "H": case.hidden_size,
            "rows": {"lstm": "i f g o", "gru": "r z n"}.get(case.mode, ""),
            "xs": [self.literal(step.T) for step in case.x],
            "layers": self._layers(),
            "heads": self._heads(),
            "flux_cells": self.flux_cells,
            "model": self._model(),
            "state": _tuple([self._state(suffix) for suffix in self.suffixes]),
            "states": self._states,
            "last_states": [f"last{place}" for place in range(1, case.layers + 1)],
            "start_of_cell": lambda cell: (
                f"{cell}.state0" if self.line > 11 else f"({cell}.h, {cell}.c)" if lstm else f"{cell}.h"
            ),
            "several_recurs": recurs,
            "names_of_recurs": ", ".join(f"m{suffix}" for suffix in self.suffixes),
            "warm": self._warm(),
            "either": name.api == "explicit" and self._kept_in_state(),
            "params": self._params(),
            "want_x": "x" in case.requested,
            "found": self._found(),
        }

    def _layers(self) -> list[list[tuple[str, str]]]:
        case = self.case
        layers = []
        for layer, suffix in enumerate(self.suffixes):
            weights = case.params[layer][0]
            arrays = {"Wi": weights.weight_ih, "Wh": weights.weight_hh, "b": self.biases[layer]}
            states = {"h0": case.h0[layer], **({} if case.c0 is None else {"c0": case.c0[layer]})}
            arrays |= {key: state[0] if self.vector else state.T for key, state in states.items()}
            layers.append([(f"{key}{suffix}", self.literal(array)) for key, array in arrays.items()])
        return layers

    def _heads(self) -> dict[str, Any]:
        case = self.case
        given = {"h": case.head_hn, "c": case.head_cn}
        arrays, weighed = [], []
        for part, (letter, head) in enumerate(given.items(), 1):
            if head is None:
                continue
            for layer, suffix in enumerate(self.suffixes):
                arrays.append((f"head_{letter}{suffix}", self.literal(head[layer].T)))
                weighed.append((arrays[-1][0], {"layer": layer, "part": part}))
        y = case.head if isinstance(case.head, str) else [self.literal(step.T) for step in case.head]
        return {"y": y, "states": arrays, "weighed": weighed}

    def _state(self, suffix: str) -> str:
        return f"(h0{suffix}, c0{suffix})" if self.case.mode == "lstm" else f"h0{suffix}"

    def _cell(self, suffix: str) -> str:
        mode = self.case.mode
        arrays = f"Wi{suffix}, Wh{suffix}, b{suffix}"
        if not self.flux_cells:
            return f"Cell({arrays})"
        if self.line < 16:
            state = self._state(suffix)
            arrays += f", {state.strip('()') if self.line == 11 else state}"
        activation = "" if mode in ("lstm", "gru") else f"{mode.removeprefix('rnn_')}, "
        return f"Flux.{_kind(mode)}Cell({activation}{arrays})"

    def _model(self) -> str:
        name = self.name
        cells = [self._cell(suffix) for suffix in self.suffixes]
        recurs = [f"Flux.Recur({cell})" for cell in cells]
        if name.model == "chain":
            return f"Chain({', '.join(recurs)})"
        if name.model == "recur" or (name.model == "cell" and self.line < 14):
            return _tuple(recurs)
        if name.model == "layer":
            option = "; return_state = true" if self.case.head_hn is not None or self.case.head_cn is not None else ""
            return _tuple([f"{_kind(self.case.mode)}({cell}{option})" for cell in cells])
        if name.holder == "struct":
            return f"Model({_tuple(cells)}, {_tuple([self._state(suffix) for suffix in self.suffixes])})"
        return _tuple(cells)

    def _states(self, model: str) -> list[str]:
        """Where each layer's last state is read."""
        places = range(1, self.case.layers + 1)
        if self.name.model == "chain":
            return [f"{model}.layers[{place}].state" for place in places]
        if self.name.model == "recur":
            return [f"{model}{f'[{place}]' * self.many}.state" for place in places]
        whole = f"{model}.state" if model == "m" else model
        return [f"{whole}{f'[{place}]' * self.many}" for place in places]

    def _warm(self) -> str:
        whole = self.name.application == "array3d"
        if self.name.model == "recur" and self.many:
            step = "one(ys)" if whole else "map(one, ys)"
            return f"foldl((ys, one) -> {step}, m; init = {'seq' if whole else 'xs'})"
        return "m(seq)" if whole else "map(m, xs)"

    def _kept_in_state(self) -> bool:
        """Whether the initial state's gradient may lie in the model's ``state`` rather than in its cell."""
        name = self.name
        if name.model == "cell":
            return self.line < 14
        return name.model in ("recur", "chain") or (name.holder == "struct" and self.flux_cells)

    def _params(self) -> list[str]:
        names = ["Wi", "Wh", "b"] + (["h0", "c0"][: 1 + (self.case.mode == "lstm")] if self._asks_state() else [])
        return [f"{name}{suffix}" for name in names for suffix in self.suffixes]

    def _asks_state(self) -> bool:
        return self.name.api == "explicit" or self.name.requested != "weights"

    def _found(self) -> list[tuple[str, str]]:
        """Name and expression of every gradient that this way of asking yields."""
        if self.name.api == "implicit":
            return [(f"d{name}", f"g[{name}]") for name in self._params()]
        found = []
        parts = ("h", "c")[: 1 + (self.case.mode == "lstm")]
        for place, suffix in enumerate(self.suffixes, 1):
            cell = self._path_of_cell(place)
            bias = "bias" if self.line == 16 and self.flux_cells and self.case.mode != "gru" else "b"
            fields = {"Wi": "Wi", "Wh": "Wh", "b": bias}
            found += [(f"d{key}{suffix}", _part("g", *cell, f":{field}")) for key, field in fields.items()]
            found += [(f"d{letter}0{suffix}", self._path_of_state(place, letter)) for letter in parts]
        if "x" in self.case.requested:
            found += [(f"dx[{t}]", f"part(gx, {t})") for t in range(1, self.case.seq_len + 1)]
        return found

    def _path_of_model(self, place: int) -> list[str]:
        if self.name.model == "chain":
            return [":layers", str(place)]
        return [str(place)] * self.many

    def _path_of_cell(self, place: int) -> list[str]:
        name = self.name
        if name.model == "closure" and name.holder == "struct":
            return [":cell", *[str(place)] * self.many]
        inner = name.model in ("recur", "chain", "layer") or (name.model == "cell" and self.line < 14)
        return [*self._path_of_model(place), *[":cell"] * inner]

    def _path_of_state(self, place: int, letter: str) -> str:
        name = self.name
        index = [str(" hc".index(letter))] * (self.case.mode == "lstm")
        struct = name.model == "closure" and name.holder == "struct"
        if not (name.model in ("recur", "chain") or struct or (name.model == "cell" and self.line < 16)):
            return _part("gstate", *[str(place)] * self.many, *index)
        kept = [":state", *[str(place)] * self.many] if struct else [*self._path_of_model(place), ":state"]
        if struct and not self.flux_cells:
            return _part("g", *kept, *index)
        field = [f":{letter}"] if self.line == 11 else [":state0", *index]
        own = _part("g", *self._path_of_cell(place), *field)
        return f"either({own}, {_part('g', *kept, *index)})" if self._kept_in_state() else own


def _line(version: str) -> int:
    """What a version shares with others: 11, 12, 14 (0.13 and 0.14) or 16 (0.15 and later)."""
    minor = int(version.split(".")[1])
    return minor if minor < 13 else 14 if minor < 15 else 16


def _kind(mode: str) -> str:
    return {"lstm": "LSTM", "gru": "GRU"}.get(mode, "RNN")


def _number(value: Any) -> str:
    """The shortest decimal that reads back to the same bits in the value's dtype."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return np.format_float_positional(value, unique=True, trim="0")
    return np.format_float_scientific(value, unique=True, trim="-")


def _tuple(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def _part(*path: str) -> str:
    return f"part({', '.join(path)})"


def julia_command(launch: Launch) -> list[str]:
    """The line's own Julia in its environment, to be given a script; ``launch.env`` belongs to it."""
    env = launch.env
    if "PYTHON_JULIACALL_EXE" in env:
        julia, project = env["PYTHON_JULIACALL_EXE"], env["PYTHON_JULIACALL_PROJECT"]
    else:
        project = env["PYTHON_JULIAPKG_PROJECT"]
        meta = json.loads((Path(project) / "pyjuliapkg" / "meta.json").read_text())
        julia = meta["executable"]
    return [julia, f"--project={project}", "--startup-file=no"]


# -- the worker's side -------------------------------------------------------------------------------------------


def open_backend(julia: str) -> Flux:
    """Start Julia in this process and load FluxBridge."""
    return Flux(julia)


class Flux:
    """One Flux line in this process. Works with juliacall 0.9 and, for Julia before 1.10, with juliacall 0.8."""

    def __init__(self, julia: str) -> None:
        print("starting Julia and loading Flux", file=sys.stderr, flush=True)
        import juliacall

        self.error = juliacall.JuliaError
        main = juliacall.Main
        main.seval("path -> push!(LOAD_PATH, string(path))")(julia)
        main.seval("using FluxBridge")
        self.vector = main.seval("(arrays...) -> Any[arrays...]")  # a Python list would reach Julia 1.5 unconverted
        self.bridge = main.FluxBridge
        if os.environ.get(INTERPRET):
            self.bridge.interpret()
        versions = {str(key): str(value) for key, value in dict(self.bridge.versions()).items()}
        self.info = {
            "framework": "flux",
            "version": versions.pop("flux"),
            **versions,
            "juliacall": getattr(juliacall, "__version__", "?"),
            "variants": " ".join(str(name) for name in self.bridge.variants()),
        }

    def disturb(self) -> None:
        """Make Julia's allocator hand out used memory, so that reading before writing would show."""
        self.bridge.disturb()

    def run(self, task: Task, variant: str) -> Reply:
        """One fresh model, one gradient call."""
        case = task.case
        biases = merged_biases(case)
        head, head_hn, head_cn = task.heads()
        question = {
            "variant": variant,
            "mode": case.mode,
            "x": np.array(case.x[: task.seq_len]),
            "weight_ih": self.vector(*(np.array(weights.weight_ih) for (weights,) in case.params)),
            "weight_hh": self.vector(*(np.array(weights.weight_hh) for (weights,) in case.params)),
            "bias": self.vector(*biases),
            "h0": np.array(case.h0),
            "c0": None if case.c0 is None else np.array(case.c0),
            "head": np.array(head),
            "head_hn": None if head_hn is None else np.array(head_hn),
            "head_cn": None if head_cn is None else np.array(head_cn),
            "loss_step": None if task.loss_step is None else task.loss_step + 1,
            "want_x": "x" in case.requested,
        }
        final = head_hn is not None or head_cn is not None
        try:
            reason = str(
                self.bridge.whynot(
                    variant=variant, mode=case.mode, layers=case.layers, h0=case.h0, c0=case.c0, final=final
                )
            )
            if reason:
                raise UnsupportedError(reason)
            try:
                return interpret(case, variant, self._answer(question))
            except self.error as error:
                crashed = Reply.without_values(case.quantities, CRASHED, first_line(str(error)))
                outputs = interpret(case, variant, self._answer(question | {"want_gradients": False}))
                return Reply(crashed.answers | {"y": outputs.answers["y"]}, start=outputs.start)
        except self.error as error:
            return Reply.without_values(case.quantities, CRASHED, first_line(str(error)))

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        found = self.bridge.gradients(**question)
        return {str(key): _numpy(found[key]) for key in found}


def _numpy(value: Any) -> Any:
    """Julia's answer as NumPy arrays on memory of their own; vectors of arrays as lists."""
    if value is None or isinstance(value, (bool, str)):
        return value
    try:
        return np.array(memoryview(value))  # np.asarray trips over juliacall's __array__ with NumPy 1.x
    except (TypeError, BufferError):
        return [_numpy(item) for item in value]
