"""Standalone scripts that show a fault in its framework alone, each run before it is handed out, with a bug report."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bridge
from bridge.answers import CRASHED, TIMED_OUT, Task
from bridge.arithmetic import Array, Exact
from bridge.backends import flux, mxnet
from bridge.backends.base import Backend
from bridge.case import QUANTITIES, REQUESTABLE, Case
from bridge.errors import UnsupportedError
from bridge.reference import Tape
from bridge.tolerance import truth
from bridge.verdicts import NOT_REPEATABLE
from bridge.workers import Launch

RUN_SECONDS = 120.0
"""How long a script may take when it is tried, where nothing is compiled; a script for a hang waits half of it."""

NOTHING_EXPECTED = "No value is expected here: the call itself is what is wrong."
ORIGINS = {
    "values": "The expected values come from backpropagation through time in NumPy (float64, proven by complex-step "
    "differentiation), the tolerance from simulated rounding noise on this very case.",
    "repeats": "No value is expected here: the same call, made twice, is to give the same twice.",
    "refuses": NOTHING_EXPECTED,
    "dies": NOTHING_EXPECTED,
}
"""Where the expected values come from, by how a script finds out; see :func:`ending`."""


@dataclasses.dataclass(frozen=True)
class Reproducer:
    """A script that was run and showed its fault.

    Attributes
    ----------
    name : of the script's file.
    files : the script and its report, by name.
    printed : what the script printed.
    """

    name: str
    files: Mapping[str, str]
    printed: str


@dataclasses.dataclass(frozen=True)
class Fault:
    """What a script is to show.

    Attributes
    ----------
    name : of the finding; names the files.
    title, what, when : in words.
    verdict : a wrong one; see :data:`bridge.verdicts.VERDICTS`.
    quantities : where it shows.
    """

    name: str
    title: str
    what: str
    when: str
    verdict: str
    quantities: tuple[str, ...]


class Wanted(NamedTuple):
    """A fault that a backend shows on a task, and what the backend says of itself."""

    backend: Backend
    task: Task
    fault: Fault
    versions: Mapping[str, str]


def reproduce(wanted: Sequence[Wanted]) -> list[Reproducer | None]:
    """Write each script, run it, and return it if it shows its fault; None where it does not, or none can be written.

    Where a framework takes long to load, its scripts run one after another in one process.
    """
    texts = [script(*one) if hasattr(one.backend, "launch") else None for one in wanted]
    groups: dict[str, dict[str, str]] = {}
    launches: dict[str, tuple[_Scripts, Launch]] = {}
    for one, text in zip(wanted, texts, strict=True):
        if text is not None:
            kind = _KINDS[one.versions["framework"]]
            groups.setdefault(one.backend.group, {})[one.fault.name + kind.suffix] = text
            launches[one.backend.group] = kind, one.backend.launch  # type: ignore[attr-defined]
    printed = {group: _run(*launches[group], scripts) for group, scripts in groups.items()}
    return [
        None if text is None else _shown(one, text, printed[one.backend.group])
        for one, text in zip(wanted, texts, strict=True)
    ]


def _run(kind: _Scripts, launch: Launch, texts: Mapping[str, str]) -> dict[str, str]:
    """Run scripts and return what those printed that showed their fault."""
    with tempfile.TemporaryDirectory(prefix="gradbridge-") as folder:
        for name, text in texts.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        found: dict[str, tuple[int, str]] = {}
        if kind.driver is not None and len(texts) > 1:
            _, said = _started([*kind.command(launch), str(kind.driver), *texts], folder, kind, launch, len(texts))
            parts = re.split(r"^== (.+) ended with (-?\d+)\n", said, flags=re.MULTILINE)
            found = {name: (int(code), out) for out, name, code in zip(*(parts[k::3] for k in range(3)), strict=False)}
        for name in texts:
            if name not in found:
                found[name] = _started([*kind.command(launch), name], folder, kind, launch)
    return {name: out for name, (code, out) in found.items() if code == 1 and "the fault shows" in out}


def _started(command: list[str], folder: str, kind: _Scripts, launch: Launch, scripts: int = 1) -> tuple[int, str]:
    """Exit code and output of a process; -1 where it did not end by itself."""
    try:
        ran = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **kind.env(launch)},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=kind.seconds * scripts,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return -1, ""
    return ran.returncode, ran.stdout


def _shown(one: Wanted, text: str, printed: Mapping[str, str]) -> Reproducer | None:
    backend, task, fault, versions = one
    kind = _KINDS[versions["framework"]]
    name = fault.name + kind.suffix
    if name not in printed:
        return None
    report = _environment().get_template("report.md.jinja")
    text_report = report.render(
        title=fault.title,
        what=fault.what,
        when=fault.when,
        backend=backend.name,
        about=backend.about,
        versions=_versions(versions),
        gradbridge=bridge.__version__,
        sizes=_sizes(task),
        command=f"{kind.language} {name}",
        origin=ORIGINS[ending(fault.verdict, task)],
        language=kind.language,
        script=text,
        printed=printed[name].strip(),
    )
    return Reproducer(name, {name: text, f"{fault.name}.md": text_report}, printed[name])


def script(backend: Backend, task: Task, fault: Fault, versions: Mapping[str, str]) -> str | None:
    """Write the script, which nobody has run yet; None where none can be written."""
    kind = _KINDS.get(versions.get("framework", ""))
    return None if kind is None else kind.write(backend, task, fault, versions)


def ending(verdict: str, task: Task) -> str:
    """How a script finds out: by ``values``, whether it ``repeats``, ``refuses``, or ``dies``."""
    if verdict in (CRASHED, TIMED_OUT):
        return "dies"
    if task.malformed:
        return "refuses"
    return "repeats" if verdict == NOT_REPEATABLE else "values"


def expectations(task: Task, fault: Fault) -> list[tuple[str, list[Array], float]]:
    """Quantity, its expected blocks and one tolerance for them, where the fault shows; all parameters or none."""
    known = truth(task)
    shown = set(fault.quantities)
    if shown & set(QUANTITIES["params"]):
        shown |= set(QUANTITIES["params"])
    return [
        (quantity, known.expected(quantity), max(float(slack.max()) for slack in known.tolerance(quantity)))
        for quantity in task.case.quantities
        if quantity in shown
    ]


def literal(array: Array, indent: int = 0) -> str:
    """Nested lists of the shortest decimals that read back to the same bits in the array's dtype."""
    return np.array2string(
        array,
        separator=", ",
        threshold=array.size + 1,
        floatmode="unique",
        max_line_width=110 - indent,
        prefix=" " * indent,
    ).replace("\n\n", "\n")


def _mxnet(backend: Backend, task: Task, fault: Fault, versions: Mapping[str, str]) -> str:
    launch: Any = backend.launch  # type: ignore[attr-defined]
    way = backend.name.partition("/")[2].partition("-")[0]
    how = ending(fault.verdict, task)
    expected = [] if how != "values" else mxnet.packed(way, expectations(task, fault), task.case, versions["version"])
    shown = mxnet.script_fields(way, task, versions["version"])
    shown["arrays"] = [(name, about, literal(array, len(name) + 12)) for name, about, array in shown["arrays"]]
    shown["weights"] = [
        [[literal(array, 16) for array in weights] for weights in directions] for directions in shown["weights"]
    ]
    text: str = (
        _environment()
        .get_template("mxnet.py.jinja")
        .render(
            title=fault.title,
            what=" ".join(filter(None, [fault.what, fault.when])),
            origin=ORIGINS[how],
            gradbridge=bridge.__version__,
            versions=_versions(versions),
            ending=how,
            case=task.case,
            switch=next(((key, value) for key, value in launch.env.items() if "_USE_" in key), None),
            expected=[(name, literal(array, 8)) for name, array, _ in expected],
            tolerance=[(name, f"{slack:.2g}") for name, _, slack in expected],
            timeout=RUN_SECONDS / 2,
            asked="requested" if how == "repeats" else shown["requested"],
            states_asked=_states_asked(shown["requested"], how),
            every=REQUESTABLE if task.case.mode == "lstm" else REQUESTABLE[:3],
            malformed_words=f"{task.malformed} is one longer than it should be",
            **shown,
        )
    )
    return text


def _flux(backend: Backend, task: Task, fault: Fault, versions: Mapping[str, str]) -> str | None:
    variant, how = backend.name.partition("/")[2], ending(fault.verdict, task)
    if how not in ("values", "dies") or fault.verdict == TIMED_OUT or fault.quantities == ("y",):
        return None
    case, version = task.alone(), versions["version"]
    begun = _carried(case) if flux.Name.parse(variant).reset == "none" else case
    try:
        shown = flux.script_fields(variant, case, version)
        known = expectations(Task(begun, case.seq_len), fault) if how == "values" else []
        expected = flux.packed(variant, known, case, version)
    except UnsupportedError:
        return None
    text: str = (
        _environment()
        .get_template("flux.jl.jinja")
        .render(
            title=fault.title,
            what=" ".join(filter(None, [fault.what, fault.when])),
            about=backend.about,
            origin=ORIGINS[how],
            gradbridge=bridge.__version__,
            versions=_versions(versions),
            ending=how,
            case=case,
            expected=[(name, value, f"{slack:.2g}") for name, value, slack in expected],
            **shown,
        )
    )
    return text


def _carried(case: Case) -> Case:
    """Give the case that begins in the state in which this one ends."""
    strands = Tape(case, case.seq_len, Exact()).strands
    ends = [strand.end for directions in strands for strand in directions]
    h0 = np.stack([h[:, 0].T for h, _ in ends])
    return case.replace(h0=h0, c0=None if case.c0 is None else np.stack([c[:, 0].T for _, c in ends if c is not None]))


@dataclasses.dataclass(frozen=True)
class _Scripts:
    """How a framework's scripts are written and run.

    Attributes
    ----------
    language, suffix : of the script.
    write : its text; None where none can be written.
    command : what runs it, given how the backend's worker is launched.
    env : variables for it.
    seconds : how long it may take.
    driver : a program in that language that runs many scripts in one process; each has its own without.
    """

    language: str
    suffix: str
    write: Callable[[Backend, Task, Fault, Mapping[str, str]], str | None]
    command: Callable[[Launch], list[str]]
    env: Callable[[Launch], Mapping[str, str]]
    seconds: float
    driver: Path | None = None


_EACH = Path(__file__).resolve().parent / "templates" / "each.jl"
_KINDS = {
    "mxnet": _Scripts("python", ".py", _mxnet, lambda launch: [launch.python], lambda _: {}, RUN_SECONDS),
    "flux": _Scripts("julia", ".jl", _flux, flux.julia_command, lambda launch: launch.env, flux.JIT_TIMEOUT, _EACH),
}


def _states_asked(requested: tuple[str, ...], how: str) -> str:
    """Python for what is requested but the parameters."""
    if how == "repeats":
        return '[name for name in requested if name != "params"]'
    return repr([name for name in requested if name != "params"])


def _sizes(task: Task) -> str:
    case = task.case
    cells = f"{case.layers} layer{'s' * (case.layers > 1)}"
    return f"{cells}, T={task.seq_len} B={case.batch} I={case.input_size} H={case.hidden_size}"


def _versions(versions: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in versions.items())


@functools.cache
def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("bridge", "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
