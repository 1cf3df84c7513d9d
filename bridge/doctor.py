"""``gradbridge doctor``: every backend line, found or not, why not, and the one command that would bring it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from bridge.backends import flux, mxnet, recorded
from bridge.backends.base import LiveBackend
from bridge.backends.registry import Sources
from bridge.config import config_path, load_config
from bridge.errors import BadInputError
from bridge.workers import Worker, WorkerError


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes
    ----------
    what : the thing looked for.
    state : ``found``, ``recorded``, ``missing`` or ``broken``.
    detail : versions, or why not.
    remedy : the command that would bring it, or empty.
    """

    what: str
    state: str
    detail: str
    remedy: str = ""


def examine(sources: Sources) -> list[Finding]:
    """Look at everything a run could use; starts each MXNet, and Julia only where its version is not known."""
    findings = [_python(), _reference(), *_mxnet(), _julia()]
    config = load_config()
    recordings = recorded.find([*sources.recordings, *map(Path, config["recordings"])])
    found = _flux(sources, config["flux"])
    findings += found
    live = {finding.what for finding in found if finding.state == "found"}
    for recording in recordings:
        if recording.line not in live:
            versions = " ".join(f"{key}={value}" for key, value in recording.versions.items() if key != "variants")
            counts = f"{len(recording.variants)} variants, cases {' '.join(recording.cases)}"
            findings.append(Finding(recording.line, "recorded", f"{counts}; {versions}", _remedy(recording.line)))
    return findings


def healthy(findings: list[Finding]) -> bool:
    """Whether at least MXNet and the reference run."""
    found = {finding.what.partition("-")[0] for finding in findings if finding.state == "found"}
    return {"reference", "mxnet"} <= found


def _python() -> Finding:
    packages = " ".join(f"{name}={_installed(name)}" for name in ("numpy", "pandas", "juliacall", "juliapkg"))
    config = config_path()
    beside = f"; config {config}" if config else ""
    return Finding(f"python-{platform.python_version()}", "found", f"{sys.executable}; {packages}{beside}")


def _reference() -> Finding:
    import bridge

    try:
        value = bridge.reference.gradients(bridge.load_case("flux-1547"))["dweight_ih"][0][0].item()
    except Exception as error:  # whatever is wrong with NumPy here is what the doctor is asked for
        return Finding("reference", "broken", repr(error))
    state = "found" if abs(value - 2.8003) < 1e-12 else "broken"
    return Finding("reference", state, f"NumPy BPTT; flux-1547 dL/dW_ih = {value:.10g}")


def _mxnet() -> list[Finding]:
    return [_line(backend) for backend in mxnet.backends() if backend.name.endswith("/unrolled")]


def _line(unrolled: LiveBackend) -> Finding:
    what = unrolled.name.partition("/")[0]
    spec = "==".join(what.rsplit("-", 1))
    added = unrolled.launch.python != sys.executable
    remedy = f"gradbridge env remove {spec}; gradbridge env add {spec}" if added else f"pip install {spec} 'numpy<2'"
    if unrolled.unavailable:
        return Finding(what, "missing", unrolled.unavailable, remedy)
    worker = Worker(unrolled.launch, 60)
    try:
        info = worker.start()
    except WorkerError as error:
        return Finding(what, "broken", str(error), remedy)
    finally:
        worker.stop()
    where = f"; in {Path(unrolled.launch.python).parent.parent}" if added else ""
    return Finding(what, "found", " ".join(f"{key}={value}" for key, value in info.items()) + where)


def _julia() -> Finding:
    exe = os.environ.get("PYTHON_JULIACALL_EXE") or shutil.which("julia")
    origin = "PYTHON_JULIACALL_EXE" if os.environ.get("PYTHON_JULIACALL_EXE") else "PATH"
    if not exe:
        return Finding("julia", "missing", "no julia on PATH; juliapkg brings its own", "gradbridge flux --live")
    try:
        version = subprocess.run([exe, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("julia", "broken", f"{exe} (from {origin}): {error}")
    return Finding("julia", "found", f"{version.strip()}: {exe} (from {origin})")


def _flux(sources: Sources, config: list[dict[str, object]]) -> list[Finding]:
    findings = []
    try:
        named = flux.named_lines(sources.julia_project, config)
    except BadInputError as error:
        return [Finding("flux", "broken", str(error))]
    for line in named:
        try:
            known = line if line.version else flux.look(line, sources.says)
        except WorkerError as error:
            findings.append(Finding("flux", "broken", f"{line.origin}: {error}"))
        else:
            findings.append(_found(known))
    findings += [_found(line) for line in flux.managed_lines() if line.installed]
    return findings


def _found(line: flux.Line) -> Finding:
    seconds = f", about {line.seconds:.0f} s to start" if line.seconds else ""
    return Finding(f"flux-{line.version}", "found", f"live: {line.origin}, {len(line.variants)} variants{seconds}")


def _remedy(line: str) -> str:
    version = line.removeprefix("flux-")
    if version in flux.MANAGED.values():
        return f"gradbridge compare --live --backend '{line}/*'"
    return "gradbridge compare --julia-project DIR   (a Julia project with this Flux)"


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
