"""Case x backend -> verdicts -> tidy pandas tables."""

from __future__ import annotations

import dataclasses
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import bridge
from bridge.answers import Reply, Task
from bridge.backends.base import Backend, ask_all
from bridge.backends.callables import Function
from bridge.backends.recorded import RecordedBackend
from bridge.backends.registry import Sources, select
from bridge.case import Case, load_case, shipped_cases
from bridge.diagnosis import Ask, Finding, Investigator
from bridge.errors import BadInputError
from bridge.timings import Timings
from bridge.tolerance import SAMPLES, SEED, Truth, truth
from bridge.verdicts import NO_VALUES, WRONG, Outcome, judge_reply
from bridge.workers import Worker, WorkerError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from bridge.jacobian import JacobianMap
    from bridge.known import Entry, Sorted
    from bridge.relations import Result


@dataclasses.dataclass
class Progress:
    """Told of a run as it goes; every method may be called from any thread."""

    def begin(self, total: int) -> None:
        """Tell how many tasks there are over all backends."""

    def starting(self, backend: str, line: str) -> None:
        """Tell that a backend is starting, with its own last word."""

    def done(self, backend: str) -> None:
        """Tell that one task is done."""


def compare(
    cases: Case | str | os.PathLike[str] | Iterable[Case | str | os.PathLike[str]] | None = None,
    backends: Iterable[str | Backend | Function] | None = None,
    *,
    timeout: float | None = None,
    loss_steps: bool = False,
    jacobian: bool = False,
    relations: bool = False,
    sources: Sources | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Feed cases to backends and to the reference, and judge every gradient element.

    Parameters
    ----------
    cases : Case, name, path, or several of them
        All shipped cases by default.
    backends : patterns, backends or callables
        Wildcards against names such as ``mxnet-2.0.0b1/fused-native``; the default set if None. A callable
        ``(case) -> dict of arrays`` is a backend in this process, see :func:`bridge.as_backend`.
    timeout : float, optional
        Seconds one task may take in a backend; 60 by default, 600 for Flux, which compiles at its first call.
    loss_steps : bool
        Ask for each loss step alone too, beside the whole head.
    jacobian : bool
        Also measure each backend's Jacobian map on each case that requests ``x``.
    relations : bool
        Also check the properties that need no reference, on each case.
    sources : Sources, optional
        Whether Flux may run live, in which Julia project, and where recordings lie.
    progress : Progress, optional

    Returns
    -------
    Comparison
        Complete, or with what was finished when the run was interrupted (``interrupted`` is then true).

    Raises
    ------
    BadInputError
        For a case, file or pattern that cannot be used.
    """
    run = Run(load_cases(cases), select(backends, sources), timeout, loss_steps, progress or Progress())
    run.jacobian, run.relations = jacobian, relations
    return run.go()


def load_cases(given: Any) -> list[Case]:
    """Read cases given as objects, names or paths, one or several; all shipped ones for None.

    Raises
    ------
    BadInputError
        For one that cannot be used, none at all, or two of one name.
    """
    if given is None:
        given = shipped_cases()
    if isinstance(given, (Case, str, os.PathLike)):
        given = [given]
    cases = [case if isinstance(case, Case) else load_case(case) for case in given]
    if not cases:
        raise BadInputError("cases", "", "at least one case", "none")
    names = [case.name for case in cases]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInputError("cases", "name", "each case's name once in a run", f"{twice!r} twice")
    return cases


class Run:
    """Backends at work: a thread per group feeds their sessions while the main thread does something else.

    Attributes
    ----------
    tasks : every case, prefix and (if asked for) loss step, in order.
    replies : backend name -> replies to the first of those tasks, as far as the run came.
    rows : backend name -> where its answers come from, versions, and why there are none.
    """

    def __init__(
        self,
        cases: list[Case],
        backends: list[Backend],
        timeout: float | None,
        loss_steps: bool,
        progress: Progress,
    ) -> None:
        self.jacobian = self.relations = False
        self.cases, self.backends, self.progress = cases, backends, progress
        self.tasks = [
            Task(case, seq_len, step)
            for case in cases
            for seq_len in case.seq_lens
            for step in (None, *(range(seq_len) if loss_steps else ()))
        ]
        workers: dict[str, Worker] = {}
        self.sessions = {
            backend.name: backend.open(timeout, _saying(progress, backend.name), workers) for backend in backends
        }
        self.replies: dict[str, list[Reply]] = {backend.name: [] for backend in backends}
        self.rows: dict[str, dict[str, str]] = {}
        self.infos: dict[str, dict[str, str]] = {}
        self.seconds: dict[str, dict[str, float]] = {backend.name: {} for backend in backends}
        self.stopping = threading.Event()
        self.truths: dict[int, Truth] = {}
        self.timings = Timings()

    def go(self) -> Comparison:
        """Run everything and judge it; an interrupt ends the workers and keeps what is finished."""
        started = time.time()
        reference = [float("nan")]

        def truths() -> None:
            began = time.monotonic()
            for index, task in enumerate(self.tasks):
                self.truths[index] = truth(task)
            reference[0] = time.monotonic() - began
            import bridge.report.html  # noqa: F401 - needed after the run; pandas and jinja2 take their time: here free

        findings: list[Finding] = []
        maps: list[JacobianMap] = []
        related: list[tuple[Case, list[tuple[str, Result]]]] = []
        try:
            with self.timings.phase("asking every backend"):
                interrupted = self.collect(truths)
            try:
                with self.timings.phase("judging"):
                    outcomes = self._judge()
                if not interrupted:
                    with self.timings.phase("diagnosis"):
                        findings = self._diagnose(outcomes)
                    if self.jacobian:
                        with self.timings.phase("Jacobian maps"):
                            maps = self._maps()
                    if self.relations:
                        with self.timings.phase("relations"):
                            related = self._relations()
            except KeyboardInterrupt:
                interrupted = True
                outcomes = self._judge()
        finally:
            with self.timings.phase("ending the workers"):
                self.close()
        return Comparison(
            self.cases,
            outcomes,
            [self.rows[backend.name] for backend in self.backends if backend.name in self.rows],
            self._manifest(started, reference[0]) | {"interrupted": interrupted},
            findings,
            interrupted,
            maps,
            related,
        )

    def close(self) -> None:
        """End every session."""
        self.stopping.set()
        for session in self.sessions.values():
            session.stop()

    def _diagnose(self, outcomes: list[Outcome]) -> list[Finding]:
        """Name the faults; backends that vary are asked again, in the sessions that are still open."""
        options = {backend.name: backend.workarounds for backend in self.backends}
        asking = {backend.name: self.sessions[backend.name].ask for backend in self._ran() if backend.varies}
        return Investigator(outcomes).findings(asking.get, self._sibling, options.__getitem__)

    def _ran(self) -> list[Backend]:
        return [backend for backend in self.backends if self.rows.get(backend.name, {}).get("state") == "ran"]

    def _maps(self) -> list[JacobianMap]:
        from bridge.jacobian import measure

        return [
            measure(self.sessions[backend.name], case, max(case.seq_lens), backend=backend.name)
            for case in self.cases
            if "x" in case.requested
            for backend in self._ran()
        ]

    def _relations(self) -> list[tuple[Case, list[tuple[str, Result]]]]:
        from bridge.relations import examine, prefix

        return [
            (
                case,
                [
                    (backend.name, result)
                    for backend in self._ran()
                    if backend.varies
                    for result in examine(
                        self.sessions[backend.name].ask,
                        prefix(case, max(case.seq_lens)),
                        understands=backend.understands,
                    )
                ],
            )
            for case in self.cases
        ]

    def _sibling(self, name: str) -> Ask | None:
        """How to ask a backend that is not in this run, where that costs nothing: it is recorded."""
        line, _, variant = name.partition("/")
        beside = next((backend for backend in self.backends if backend.name.startswith(line + "/")), None)
        return beside.sibling(variant) if isinstance(beside, RecordedBackend) else None

    def collect(self, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Ask every backend every task; returns whether the run was interrupted. Sessions stay open."""
        from threadpoolctl import threadpool_limits

        self.progress.begin(len(self.tasks) * len(self.backends))
        groups: dict[str, list[Backend]] = {}
        for backend in self.backends:
            groups.setdefault(backend.group, []).append(backend)
        starting = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="backend")
        reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recordings")  # while processes start
        try:
            with threadpool_limits(limits=1):  # workers keep the other cores busy; see DESIGN
                futures = [
                    (reading if group[0].source == "recorded" else starting).submit(self._feed, group)
                    for group in groups.values()
                ]
                meanwhile()
                for future in futures:
                    future.result()
        except BaseException as error:
            self.close()  # frees the threads that wait for a worker
            if isinstance(error, KeyboardInterrupt):
                return True
            raise
        finally:
            for executor in (starting, reading):
                executor.shutdown(wait=True, cancel_futures=True)
        return False

    def _feed(self, group: list[Backend]) -> None:
        for backend in group:
            if not self.stopping.is_set():
                self._feed_one(backend)

    def _feed_one(self, backend: Backend) -> None:
        session = self.sessions[backend.name]
        row = {
            "backend": backend.name,
            "about": backend.about,
            "source": backend.source,
            "state": "ran",
            "versions": "",
            "reason": "",
        }
        began = time.monotonic()
        try:
            info = session.start()
            self.infos[backend.name] = info
            row["versions"] = " ".join(f"{key}={value}" for key, value in info.items())
        except WorkerError as error:
            row |= {"state": error.verdict, "reason": str(error)}
        self.seconds[backend.name]["start"] = time.monotonic() - began
        if self.stopping.is_set():
            return
        for reply in ask_all(session, self.tasks):
            if self.stopping.is_set():
                return  # the reply is of a worker that was told to end
            self.replies[backend.name].append(reply)
            self.rows[backend.name] = row
            self.progress.done(backend.name)
        self.seconds[backend.name]["total"] = time.monotonic() - began

    def _judge(self) -> list[Outcome]:
        outcomes = []
        for index, task in enumerate(self.tasks):
            for backend in self.backends:
                replies = self.replies[backend.name]
                if index < len(replies):
                    known = self._truth(index, task, replies[index])
                    outcomes.append(Outcome(backend.name, task, judge_reply(replies[index], known), known))
        return outcomes

    def _truth(self, index: int, task: Task, reply: Reply) -> Truth:
        if reply.start is not None:  # a carried state is judged as the state the backend really started from
            return truth(dataclasses.replace(task, case=task.case.replace(**reply.start)))
        if index not in self.truths:  # the run was interrupted before the reference came to it
            self.truths[index] = truth(task)
        return self.truths[index]

    def _manifest(self, started: float, reference_seconds: float) -> dict[str, Any]:
        import pandas as pd

        return {
            "kind": "compare",
            "command": [],
            "gradbridge": bridge.__version__,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "seconds": {
                "total": time.time() - started,
                "phases": [dataclasses.asdict(phase) for phase in self.timings.phases],
                "reference": reference_seconds,
                "backends": self.seconds,
            },
            "platform": {
                "python": platform.python_version(),
                "numpy": np.__version__,
                "pandas": pd.__version__,
                "system": platform.platform(),
                "machine": platform.machine(),
                "cpus": os.cpu_count(),
            },
            "threads": {"reference": 1, "worker": 1},
            "noise_floor": {"samples": SAMPLES, "seed": SEED},
            "cases": {
                case.name: {"digest": case.digest(), "source": case.source, "network": case.network}
                for case in self.cases
            },
            "backends": dict(sorted(self.rows.items())),
            "switches": {
                backend.name: dict(backend.launch.env) for backend in self.backends if hasattr(backend, "launch")
            },
        }


def _saying(progress: Progress, backend: str) -> Callable[[str], None]:
    return lambda line: progress.starting(backend, line)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The tables of a run. Each is made when first asked for.

    Attributes
    ----------
    cases : the cases, in order.
    outcomes : judged answers, ordered by case, prefix, loss step and backend.
    backend_rows : one row per backend.
    manifest : versions, switches, digests, seeds, timings; what ``run.json`` holds.
    findings : the disagreements with the names of their faults.
    interrupted : whether the run ended early; the tables then hold what was finished.
    maps : Jacobian maps, where asked for.
    related : per case, (backend, result of a relation) pairs, where asked for.
    """

    cases: Sequence[Case]
    outcomes: Sequence[Outcome]
    backend_rows: Sequence[Mapping[str, str]]
    manifest: Mapping[str, Any]
    findings: Sequence[Finding] = ()
    interrupted: bool = False
    maps: Sequence[JacobianMap] = ()
    related: Sequence[tuple[Case, Sequence[tuple[str, Result]]]] = ()

    @cached_property
    def gradients(self) -> pd.DataFrame:
        """One row per scalar that a backend gave, or said to be nothing or not repeatable."""
        from bridge.report import tables

        return tables.gradients(self.outcomes)

    @cached_property
    def timesteps(self) -> pd.DataFrame:
        """One row per case, backend, ``y`` or ``dx``, prefix, loss step and time step."""
        from bridge.report import tables

        return tables.timesteps(self.outcomes)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per case, backend and quantity."""
        from bridge.report import tables

        return tables.summary(self.outcomes, self.findings)

    @cached_property
    def faults(self) -> pd.DataFrame:
        """One row per finding."""
        from bridge.report import tables

        return tables.findings(self.findings)

    @cached_property
    def jacobian(self) -> pd.DataFrame:
        """One row per element of every Jacobian map."""
        from bridge.report import tables

        return tables.jacobian(self.maps)

    @cached_property
    def relations(self) -> pd.DataFrame:
        """One row per case, backend and relation."""
        from bridge.report import tables

        return tables.relations(self.related)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Backends against each other, without the reference in between."""
        from bridge.report import tables

        return tables.pairs(self.outcomes)

    @cached_property
    def backends(self) -> pd.DataFrame:
        """One row per backend: where its answers come from, versions, and why there are none."""
        from bridge.report import tables

        return tables.backends(self.backend_rows)

    @cached_property
    def matrix(self) -> pd.DataFrame:
        """One row per fault and backend variant, a column per version; see :func:`bridge.matrix.matrix`."""
        from bridge.matrix import matrix

        return matrix(self.summary, (row["backend"] for row in self.backend_rows))

    @cached_property
    def not_repeatable(self) -> pd.DataFrame:
        """Both values of every element whose bits differed between two identical calls."""
        from bridge.report import tables

        return tables.not_repeatable(self.outcomes)

    def save(self, folder: str | os.PathLike[str], skip: Sequence[str] = (), format: str = "csv") -> Path:
        """Write every table but those to skip, ``run.json`` and ``report.html``, each whole or not at all.

        Parameters
        ----------
        folder : is made if missing.
        skip : names of files, without suffix.
        format : ``csv`` or ``parquet``, of ``gradients``, ``pairs`` and ``jacobian``; the others are always CSV.

        Raises
        ------
        BadInputError
            When the folder cannot be written, or for an unknown format.
        """
        from bridge.report import files

        return files.save(self, Path(folder), skip, format)

    @property
    def disagreements(self) -> int:
        """How many (case, backend, quantity) have a value that is wrong, not finite or not repeatable."""
        return int(self.summary["verdict"].isin(WRONG).sum())

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.backend_rows)} backends on {', '.join(case.name for case in self.cases)}>"

    def _repr_html_(self) -> str:
        """Show the verdicts in a notebook."""
        from bridge.report.notebook import as_html

        return as_html(self)

    def plot_timesteps(
        self,
        quantity: str = "dx",
        *,
        case: str | None = None,
        backend: str | None = None,
        seq_len: int | None = None,
    ) -> Figure:
        """Draw the largest absolute error at each time step against the tolerance there, on a logarithmic scale.

        Parameters
        ----------
        quantity : ``dx`` or ``y``
        case : the first by default.
        backend : all by default.
        seq_len : the prefix; the longest by default.

        Returns
        -------
        matplotlib.figure.Figure
            Not in pyplot's list; save it with its ``savefig``.

        Raises
        ------
        BadInputError
            For what is not in this comparison.
        ImportError
            Without matplotlib: ``pip install gradbridge[plot]``.
        """
        from bridge.report.notebook import plot_timesteps

        return plot_timesteps(self, quantity, case, backend, seq_len)

    def plot_jacobian(self, *, case: str | None = None, backend: str | None = None) -> Figure:
        """Draw a Jacobian map of a comparison made with ``jacobian=True``: reference, backend and their difference.

        A point is the largest absolute value of dL_s/dx_t over batch and features, blank within the tolerance.
        Parameters, result and errors are those of :meth:`plot_timesteps`; the first map that fits is drawn.
        """
        from bridge.report.notebook import plot_jacobian

        return plot_jacobian(self, case, backend)

    def sort(self, known: Sequence[Entry]) -> Sorted:
        """Sort what is wrong into what a file of accepted findings knows and what is new; see :mod:`bridge.known`."""
        from bridge.known import sort

        summary = self.summary
        wrong = summary[summary["verdict"].isin(WRONG)].rename(columns={"quantity": "quantities"})
        judged = summary[~summary["verdict"].isin(NO_VALUES)]
        looked = judged[["case", "backend", "quantity"]].itertuples(index=False, name=None)
        return sort(known, wrong.to_dict("records"), looked)

    @property
    def ran(self) -> bool:
        """Whether any backend gave any value."""
        return any(judged.blocks for outcome in self.outcomes for judged in outcome.quantities.values())
