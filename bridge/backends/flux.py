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
    """A variant's name taken apart; see the README for the grammar."""

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
                return Reply(crashed.answers | {"y": outputs.answers["y"]})
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
