"""``gradbridge record``: run live backends and write down what they returned."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bridge.backends import recorded
from bridge.backends.base import Backend
from bridge.backends.registry import Sources, select
from bridge.comparison import Progress, Run, load_cases
from bridge.errors import BadInputError


def record(
    cases: Any,
    backends: Iterable[str | Backend] | None,
    out: Path,
    *,
    timeout: float | None = None,
    loss_steps: bool = True,
    sources: Sources | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Run live backends and write a recording per backend line.

    Parameters
    ----------
    cases, backends, timeout, sources, progress : as for :func:`bridge.compare`
    out : folder that gets one folder per line.
    loss_steps : bool
        Record each loss step alone too.

    Returns
    -------
    The folders written.

    Raises
    ------
    BadInputError
        Where no live backend matches, or one cannot start, or the folder cannot be written.
    """
    loaded = load_cases(cases)
    live = [backend for backend in select(backends, sources) if backend.source == "live"]
    if not live:
        raise BadInputError("record", "backend", "a backend that runs live here", "none; see `gradbridge doctor`")
    run = Run(loaded, live, timeout, loss_steps, progress or Progress())
    try:
        if run.collect():
            raise KeyboardInterrupt
    finally:
        run.close()
    lines: dict[str, list[Backend]] = {}
    for backend in live:
        lines.setdefault(backend.name.partition("/")[0], []).append(backend)
    written = []
    for line, members in lines.items():
        failed = next((run.rows[b.name] for b in members if run.rows[b.name]["state"] != "ran"), None)
        if failed is not None:
            raise BadInputError("record", failed["backend"], "a backend that starts", failed["reason"])
        replies = {
            (backend.name.partition("/")[2], task.case.name, task.seq_len, task.loss_step): reply
            for backend in members
            for task, reply in zip(run.tasks, run.replies[backend.name], strict=True)
        }
        written.append(recorded.write(out / line, line, run.infos[members[0].name], loaded, replies))
    return written
