"""Random search for disagreements: batches of cases through every backend, grouped into findings, shrunk, reproduced.

What is finished lies in a journal, one file a batch, so that a killed sweep loses at most the batches in flight. The
tables are made from the journal alone: they are the same however many processes did the work, and after any number of
interruptions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import multiprocessing
import os
import platform
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import bridge
from bridge.backends.base import Backend
from bridge.backends.registry import Sources, select
from bridge.batches import BATCH, Assignment, backend_rows, run_batch
from bridge.case import atomic
from bridge.errors import BadInputError
from bridge.kinds import Kind, Row, Stops, group, rows_for_table, settle
from bridge.known import Entry, Sorted, sort
from bridge.reduction import Reduced, reduce
from bridge.report.files import check_writable, unwritable, write_csv, write_json, write_report
from bridge.serve import end_with_parent
from bridge.space import signature
from bridge.verdicts import AGREES, DISAGREES, NOT_FINITE, NOT_REPEATABLE, SHORT

if TYPE_CHECKING:
    import pandas as pd

Told = Callable[[int, int, int], None]
"""Told of progress: cases done, cases in all, findings so far."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep found.

    Attributes
    ----------
    rows : one per case, in order; see :func:`bridge.batches.run_batch`.
    kinds : the kinds of disagreement, each with its reduced case where that was made.
    stopped : backend -> why it was asked no more.
    backends : backend -> whether it runs, versions; empty where the sweep was interrupted.
    interrupted : whether it ended early; what was done is in the tables, and ``resume`` goes on.
    """

    rows: Sequence[Row]
    kinds: Sequence[tuple[Kind, Reduced | None]]
    stopped: Mapping[str, str]
    backends: Mapping[str, Mapping[str, str]]
    interrupted: bool = False

    @property
    def cases(self) -> pd.DataFrame:
        """One row per case and backend."""
        import pandas as pd

        return pd.DataFrame(rows_for_table(self.rows))

    @property
    def ran(self) -> bool:
        """Whether any backend gave any values."""
        gave = {DISAGREES, NOT_FINITE, NOT_REPEATABLE, AGREES}
        return any(result["verdict"] in gave for row in self.rows for result in row["results"].values())

    def sort(self, accepted: Sequence[Entry]) -> Sorted:
        """Sort the findings into new and accepted ones; see :mod:`bridge.known`."""
        found = [
            {"backend": kind.backend, "quantities": " ".join(kind.quantities or ("y",)), "fault": kind.fault}
            for kind, _ in self.kinds
        ]
        names = dict.fromkeys(name for row in self.rows for name in row["results"])
        looked = [("", name, quantity) for name in names for quantity in SHORT]
        return sort(accepted, found, looked)

    @property
    def findings(self) -> pd.DataFrame:
        """One row per finding."""
        import pandas as pd

        columns = [
            "finding", "backend", "quantities", "fault", "condition", "n_cases", "min_case", "worst_rel_err",
            "verdict", "separates", "asked", "reproducer", "sentence",
        ]  # fmt: skip
        return pd.DataFrame([_finding(kind, reduced) for kind, reduced in self.kinds], columns=columns)


def _finding(kind: Kind, reduced: Reduced | None) -> dict[str, Any]:
    return {
        "finding": kind.name,
        "backend": kind.backend,
        "quantities": " ".join(kind.quantities),
        "fault": kind.fault,
        "condition": kind.condition.text,
        "n_cases": len(kind.indices),
        "min_case": kind.name if reduced else "",
        "worst_rel_err": kind.worst_rel_err,
        "verdict": kind.verdict,
        "separates": kind.condition.separates,
        "asked": reduced.task.asked if reduced else "",
        "reproducer": reduced.script_name if reduced else "",
        "sentence": kind.sentence,
    }


def sweep(
    backends: Iterable[str | Backend] | None = None,
    *,
    out: str | os.PathLike[str],
    max_cases: int = 1000,
    minutes: float | None = None,
    seed: int = 0,
    jobs: int | None = None,
    resume: bool = False,
    scheduler: str | None = None,
    timeout: float | None = None,
    sources: Sources | None = None,
    told: Told | None = None,
    command: Sequence[str] = (),
) -> Sweep:
    """Search for disagreements and write what was found into a folder.

    Parameters
    ----------
    backends : patterns or backends; every live backend that is cheap to ask by default (MXNet).
    out : folder for ``cases.csv``, ``findings.csv``, ``run.json``, ``cases/``, ``reproducers/`` and the journal.
    max_cases : how many cases of the seed to run.
    minutes : after which no further batch is begun.
    seed : which cases.
    jobs : processes that run batches, each with workers of its own; by default as many as there are cores, and one
        where a backend must compile nearly every case first, since two would compile the same.
    resume : go on with the sweep that lies in ``out``.
    scheduler : address of a dask.distributed scheduler whose workers do it instead (``gradbridge[cluster]``).
    timeout, sources : as for :func:`bridge.compare`.
    told : progress.
    command : how it was called, for ``run.json`` and the report.

    Raises
    ------
    BadInputError
        For a pattern, folder or scheduler that cannot be used, or a folder that holds another sweep.
    """
    folder = Path(out)
    assignment = _assign(backends, seed, sources or Sources(), timeout)
    journal = Journal(folder, assignment, resume)
    stops, kinds_seen, interrupted = Stops(), set[tuple[str, str, str]](), False
    began = time.time()
    try:
        with contextlib.ExitStack() as stack:
            executor, width = _executor(stack, jobs or (1 if assignment.batch == 1 else os.cpu_count() or 1), scheduler)
            try:
                _run(executor, width, assignment, journal, max_cases, minutes, stops, kinds_seen, told)
            except KeyboardInterrupt:
                interrupted = True
            stops = Stops()
            rows = settle([stops.feed(row) for row in journal.rows(max_cases)], assignment.seed)
            kinds = group(rows)
            reduced: dict[tuple[str, str, str], Reduced] = {}
            described: dict[str, dict[str, str]] = {}
            if not interrupted:
                try:
                    reduced = _reduce(executor, assignment, kinds)
                    described = executor.submit(backend_rows, assignment).result()
                except KeyboardInterrupt:
                    interrupted = True
            if interrupted:
                _kill_children()
    except BrokenProcessPool:
        raise BadInputError(
            "sweep", "", "job processes that live", "one that was killed; what is done is kept: --resume goes on"
        ) from None
    found = Sweep(
        rows,
        [(kind, reduced.get((kind.backend, kind.verdict, kind.fault))) for kind in kinds],
        stops.reasons,
        described,
        interrupted,
    )
    _save(found, folder, assignment, began, command)
    return found


def _assign(patterns: Iterable[str | Backend] | None, seed: int, sources: Sources, timeout: float | None) -> Assignment:
    given = None if patterns is None else list(patterns)
    chosen = [backend for backend in select(given, sources) if backend.source == "live"]
    if given is None:
        chosen = [backend for backend in chosen if backend.varies]
    if not chosen:
        raise BadInputError("sweep", "backend", "a backend that runs live here", "none; see `gradbridge doctor`")
    objects = {backend.name: backend for backend in given or () if not isinstance(backend, str)}
    names = tuple(backend.name for backend in chosen)
    quiet = dataclasses.replace(sources, says=None)  # what a terminal is told does not travel
    batch = BATCH if all(backend.varies for backend in chosen) else 1
    return Assignment(seed, tuple(objects.get(name, name) for name in names), names, quiet, timeout, batch)


# -- the journal -------------------------------------------------------------------------------------------------


class Journal:
    """The finished batches of a sweep, a file each.

    Raises
    ------
    BadInputError
        When the folder cannot be written, or holds a sweep that this one does not go on with.
    """

    def __init__(self, folder: Path, assignment: Assignment, resume: bool) -> None:
        check_writable(str(folder))
        self.folder, self.batch = folder / "journal", assignment.batch
        plan = {
            "gradbridge": bridge.__version__,
            "seed": assignment.seed,
            "cases": signature(assignment.seed),
            "backends": list(assignment.names),
            "batch": assignment.batch,
        }
        path = self.folder / "plan.json"
        if path.exists():
            there = _read(path)
            if not resume:
                raise BadInputError(str(folder), "", "a folder without a sweep (or --resume to go on)", "a sweep")
            if there != plan:
                differs = next(key for key in plan if there.get(key) != plan[key])
                began = f"{there.get(differs)}, as the sweep began"
                raise BadInputError(str(folder), differs, began, str(plan[differs]))
        else:
            self._write(path, plan)

    def has(self, start: int, count: int) -> bool:
        """Whether a batch is done."""
        return self._path(start, count).exists()

    def add(self, start: int, count: int, rows: Sequence[Row]) -> None:
        """Keep a batch."""
        self._write(self._path(start, count), rows)

    def read(self, start: int, count: int) -> list[Row]:
        """Give a batch back."""
        rows: list[Row] = _read(self._path(start, count))
        return rows

    def rows(self, max_cases: int) -> Iterator[Row]:
        """All rows of the batches that are done, in order."""
        for start, count in self.batches(max_cases):
            if self.has(start, count):
                yield from self.read(start, count)

    def batches(self, max_cases: int) -> Iterator[tuple[int, int]]:
        """Start and size of each batch."""
        for start in range(0, max_cases, self.batch):
            yield start, min(self.batch, max_cases - start)

    def _path(self, start: int, count: int) -> Path:
        return self.folder / f"{start:08d}-{count}.json"

    def _write(self, path: Path, value: Any) -> None:
        try:
            with atomic(path) as temporary:
                temporary.write_text(json.dumps(value, separators=(",", ":")), encoding="utf-8")
        except OSError as error:
            raise unwritable(path.parent, error) from None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInputError(str(path), "", "a file of the sweep's journal", str(error)) from None


# -- doing it ----------------------------------------------------------------------------------------------------


def _executor(stack: contextlib.ExitStack, jobs: int, scheduler: str | None) -> tuple[Executor, int]:
    """Processes here, or a cluster's; and how many batches to keep in flight."""
    if scheduler is None:
        context = multiprocessing.get_context("spawn")
        return stack.enter_context(ProcessPoolExecutor(jobs, context, initializer=_job)), 2 * jobs
    try:
        from distributed import Client
    except ImportError:
        raise BadInputError("--scheduler", "", "dask.distributed: pip install 'gradbridge[cluster]'", "none") from None
    try:
        client = stack.enter_context(Client(scheduler, timeout="10s"))  # type: ignore[no-untyped-call, unused-ignore]
    except (OSError, ValueError) as error:
        found = str(error) or type(error).__name__
        raise BadInputError("--scheduler", "", "the address of a dask scheduler that answers", found) from None
    executor = stack.enter_context(client.get_executor(pure=False))
    return executor, 2 * max(1, len(client.scheduler_info()["workers"]))


def _job() -> None:
    """Begin a job process: Ctrl-C is the parent's to handle, and it does not outlive the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _kill_children() -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()


def _run(
    executor: Executor,
    width: int,
    assignment: Assignment,
    journal: Journal,
    max_cases: int,
    minutes: float | None,
    stops: Stops,
    seen: set[tuple[str, str, str]],
    told: Told | None,
) -> None:
    """Have every batch done that is not, a few at a time, and watch the finished ones in order."""
    ends = math.inf if minutes is None else time.monotonic() + 60 * minutes
    todo = journal.batches(max_cases)
    flying: dict[Future[list[dict[str, Any]]], tuple[int, int]] = {}
    landed: dict[int, int] = {}
    expected = done = 0

    def watch(start: int, count: int) -> None:
        nonlocal expected, done
        landed[start] = count
        done += count
        while expected in landed:
            size = landed.pop(expected)
            for row in journal.read(expected, size):
                for backend, result in stops.feed(row)["results"].items():
                    seen.update((backend, symptom["verdict"], symptom["fault"]) for symptom in result["symptoms"])
            expected += size
        if told is not None:
            told(done, max_cases, len(seen))

    while True:
        while len(flying) < width and time.monotonic() < ends and (batch := next(todo, None)) is not None:
            if journal.has(*batch):
                watch(*batch)
            else:
                flying[executor.submit(run_batch, assignment, *batch, tuple(stops.reasons))] = batch
        if not flying:
            return
        finished, _ = wait(flying, return_when=FIRST_COMPLETED)
        for future in finished:
            batch = flying.pop(future)
            journal.add(*batch, future.result())
            watch(*batch)


def _reduce(executor: Executor, assignment: Assignment, kinds: Sequence[Kind]) -> dict[tuple[str, str, str], Reduced]:
    """Shrink each kind and try its script; variants that fail alike on the same case are done together."""
    alike: dict[tuple[str, str, str, int], list[Kind]] = {}
    for kind in kinds:
        line = kind.backend.partition("/")[0]
        alike.setdefault((line, kind.verdict, kind.fault, kind.indices[0]), []).append(kind)
    futures = [executor.submit(reduce, assignment, tuple(members)) for members in alike.values()]
    found: dict[tuple[str, str, str], Reduced] = {}
    for members, future in zip(alike.values(), futures, strict=True):
        for kind, one in zip(members, future.result(), strict=True):
            found[kind.backend, kind.verdict, kind.fault] = one
    return found


# -- writing it --------------------------------------------------------------------------------------------------


def _save(found: Sweep, folder: Path, assignment: Assignment, began: float, command: Sequence[str]) -> None:
    write_csv(found.cases, folder / "cases.csv")
    write_csv(found.findings, folder / "findings.csv")
    try:
        for kind, reduced in found.kinds:
            if reduced is not None:
                reduced.task.case.replace(name=kind.name).save(folder / "cases" / f"{kind.name}.json")
                for name, text in reduced.files.items():
                    with atomic(folder / "reproducers" / name) as temporary:
                        temporary.write_text(text, encoding="utf-8")
        write_json(_manifest(found, assignment, began, command), folder / "run.json")
    except OSError as error:
        raise unwritable(folder, error) from None
    write_report(folder)


def _manifest(found: Sweep, assignment: Assignment, began: float, command: Sequence[str]) -> dict[str, Any]:
    return {
        "kind": "sweep",
        "command": list(command),
        "gradbridge": bridge.__version__,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "seconds": {"total": time.time() - began},
        "seed": assignment.seed,
        "n_cases": len(found.rows),
        "backends": dict(found.backends),
        "stopped": dict(found.stopped),
        "interrupted": found.interrupted,
        "platform": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "system": platform.platform(),
            "cpus": os.cpu_count(),
        },
    }
