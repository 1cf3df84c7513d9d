"""One batch of a sweep: cases through every backend, judged and named.

A batch is a pure function of its assignment, so it may be computed in any process, here or on a cluster, and again
after a kill.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bridge.answers import CRASHED, TIMED_OUT, UNAVAILABLE, UNSUPPORTED, WROTE_INTO, Reply, Task
from bridge.backends.base import Backend, ask_all
from bridge.backends.registry import Sources, select
from bridge.errors import BadInputError
from bridge.faults import UNEXPLAINED, Matcher, Seen
from bridge.space import Sample, sample
from bridge.tolerance import Truth, truth
from bridge.verdicts import AGREES, DISAGREES, NOT_FINITE, NOT_REPEATABLE, Judged, judge_reply
from bridge.workers import Worker, WorkerError

BATCH = 20
"""Cases that travel together; one alone where a backend must compile nearly every case first."""

TOO_MANY = 10
"""Crashes in a row after which a backend is asked no more."""

ACCEPTED = "wrong-shape-accepted"
OVERWRITTEN = "input-overwritten"
_GRAVITY = (CRASHED, TIMED_OUT, UNAVAILABLE, NOT_REPEATABLE, NOT_FINITE, DISAGREES, AGREES, UNSUPPORTED)


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What is asked of a process that runs batches; picklable.

    Attributes
    ----------
    seed : of the space.
    backends : names, or backends that no registry knows.
    names : their names, which a process elsewhere must find too.
    sources : where a named backend may come from.
    timeout : seconds for one task, or None for each backend's own.
    batch : cases in a batch.
    """

    seed: int
    backends: tuple[str | Backend, ...]
    names: tuple[str, ...]
    sources: Sources
    timeout: float | None
    batch: int = BATCH


class Bench:
    """The sessions of an assignment in this process; they live as long as it does.

    Raises
    ------
    BadInputError
        When this process finds other backends than the assignment names.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        backends = select(assignment.backends, assignment.sources)
        found = tuple(backend.name for backend in backends)
        if found != assignment.names:
            raise BadInputError("sweep", "backends", ", ".join(assignment.names), ", ".join(found) + " in a worker")
        workers: dict[str, Worker] = {}
        self.backends = {backend.name: backend for backend in backends}
        self.sessions = {backend.name: backend.open(assignment.timeout, None, workers) for backend in backends}

    def ask_all(self, name: str, tasks: Sequence[Task]) -> Iterator[Reply]:
        """Have a backend compute tasks; what it does not understand is ``unsupported``."""
        session, understood = self.sessions[name], self.backends[name].understands
        asked = [task for task in tasks if set(task.special) <= set(understood)]
        replies = ask_all(session, asked)
        for task in tasks:
            unknown = set(task.special) - set(understood)
            reason = f"this backend has no {' '.join(sorted(unknown))}"
            yield Reply.without_values(task.case.quantities, UNSUPPORTED, reason) if unknown else next(replies)

    def ask(self, name: str, task: Task) -> Reply:
        """Have a backend compute one task."""
        return next(self.ask_all(name, [task]))

    def close(self) -> None:
        """End every session."""
        for session in self.sessions.values():
            session.stop()


_benches: list[Bench] = []
_one_at_a_time = threading.RLock()  # a cluster's worker may have several threads


@contextlib.contextmanager
def bench_of(assignment: Assignment) -> Iterator[Bench]:
    """Give this process's bench for an assignment, to one thread at a time, with one BLAS thread."""
    from threadpoolctl import threadpool_limits

    with _one_at_a_time, threadpool_limits(limits=1):
        if not _benches or _benches[0].assignment != assignment:
            close_bench()
            _benches.append(Bench(assignment))
        yield _benches[0]


def close_bench() -> None:
    """End the sessions that this process keeps."""
    while _benches:
        _benches.pop().close()


def run_batch(assignment: Assignment, start: int, count: int, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Run cases ``start`` to ``start + count - 1`` of its seed through its backends.

    Returns
    -------
    One row per case: ``index``, ``digest``, ``features`` and ``results``, by backend.
    """
    with bench_of(assignment) as bench:
        samples = [sample(assignment.seed, index) for index in range(start, start + count)]
        groups: dict[str, list[str]] = {}
        for name in assignment.names:
            if name not in without:
                groups.setdefault(bench.backends[name].group, []).append(name)
        replies: dict[str, list[Reply]] = {}

        def feed(names: list[str]) -> None:
            for name in names:
                replies[name] = _until_hopeless(bench.ask_all(name, [one.task for one in samples]))

        with ThreadPoolExecutor(max_workers=max(1, len(groups))) as executor:
            fed = [executor.submit(feed, names) for names in groups.values()]
            truths = [None if one.task.malformed else truth(one.task) for one in samples]
            for future in fed:
                future.result()
        pairs = zip(samples, truths, strict=True)
        return [_row(one, known, replies, place) for place, (one, known) in enumerate(pairs)]


def backend_rows(assignment: Assignment) -> dict[str, dict[str, str]]:
    """Say of every backend whether it runs and what it says of itself, for ``run.json``."""
    rows = {}
    with bench_of(assignment) as bench:
        for name, session in bench.sessions.items():
            row = {"backend": name, "source": "live", "state": "ran", "versions": "", "reason": ""}
            try:
                row["versions"] = " ".join(f"{key}={value}" for key, value in session.start().items())
            except WorkerError as error:
                row |= {"state": error.verdict, "reason": str(error)}
            rows[name] = row
    return rows


def _until_hopeless(replies: Iterator[Reply]) -> list[Reply]:
    """Take replies, up to the tenth crash in a row."""
    taken: list[Reply] = []
    for reply in replies:
        taken.append(reply)
        if len(taken) >= TOO_MANY and all(_ended(one) in (CRASHED, TIMED_OUT) for one in taken[-TOO_MANY:]):
            break
    return taken


def _ended(reply: Reply) -> str:
    verdicts = {answer.verdict for answer in reply.answers.values()}
    return verdicts.pop() if len(verdicts) == 1 else ""


def _row(one: Sample, known: Truth | None, replies: Mapping[str, list[Reply]], place: int) -> dict[str, Any]:
    matcher = Matcher()
    results = {
        name: examine(name, one.task, known, taken[place], matcher)
        for name, taken in replies.items()
        if place < len(taken)
    }
    return {"index": one.index, "digest": one.task.case.digest(), "features": one.features, "results": results}


def examine(
    backend: str, task: Task, known: Truth | None, reply: Reply, matcher: Matcher, quick: bool = True
) -> dict[str, Any]:
    """Judge a reply and name what is wrong with it.

    Returns
    -------
    dict of ``verdict``, ``reason`` and ``symptoms``: each a dict of ``verdict``, ``fault``, ``quantities``,
    ``rel_err`` (the worst, NaN where there are no values), ``detailed`` (the faults of a match with their parameters,
    else empty).
    """
    if known is None:
        return _malformed(task, reply)
    if reply.start is not None:  # a carried state is judged as the state the backend really started from
        known = truth(dataclasses.replace(task, case=task.case.replace(**reply.start)))
    judged = judge_reply(reply, known)
    verdict = next(name for name in _GRAVITY if any(one.verdict == name for one in judged.values()))
    reason = next((one.reason for one in judged.values() if one.verdict == verdict and one.reason), "")
    if _beyond(judged, known.dtype):
        return {"verdict": AGREES, "reason": f"the true values are beyond {known.dtype}", "symptoms": []}
    symptoms = [
        _symptom(
            next(name for name in _GRAVITY if any(judged[q].verdict == name for q in match.quantities)),
            "+".join(match.kinds) or UNEXPLAINED,
            match.quantities,
            max(_worst(judged[quantity]) for quantity in match.quantities),
            match.fault if match.faults else "",
        )
        for match in matcher.diagnose([Seen(known, judged)], backend.partition("-")[0], quick)
    ]
    for ending in (CRASHED, TIMED_OUT):
        if dead := tuple(name for name, one in judged.items() if one.verdict == ending):
            symptoms.append(_symptom(ending, _last_words(judged[dead[0]].reason), dead, math.nan))
    written = [note.partition(WROTE_INTO)[2].strip() for note in reply.notes if WROTE_INTO in note]
    symptoms += [_symptom(DISAGREES, OVERWRITTEN, (name,), math.nan) for name in written]
    return {"verdict": verdict, "reason": reason, "symptoms": symptoms}


def _last_words(reason: str) -> str:
    """What an error says without the case's own: numbers, and from where on a Julia message lists types."""
    return re.sub(r"\d+", "#", re.split(r"\(::|\{", reason, maxsplit=1)[0])


def _beyond(judged: Mapping[str, Judged], dtype: str) -> bool:
    """Whether a true value is beyond the dtype's range; a backend that overflows there has no fault."""
    with np.errstate(all="ignore"):
        tops = [np.abs(block.reference).max() for one in judged.values() for block in one.blocks]
    return any(not top <= np.finfo(dtype).max for top in tops)


def _malformed(task: Task, reply: Reply) -> dict[str, Any]:
    """Judge what was made of wrong input: a refusal is right, values are not, nor is a death."""
    ended = _ended(reply)
    reason = next(iter(reply.answers.values())).reason
    if ended == UNSUPPORTED:
        return {"verdict": UNSUPPORTED, "reason": reason, "symptoms": []}
    if ended in (CRASHED, TIMED_OUT, UNAVAILABLE):
        symptoms = [] if ended == UNAVAILABLE else [_symptom(ended, f"wrong shape: {task.malformed}", (), math.nan)]
        return {"verdict": ended, "reason": reason, "symptoms": symptoms}
    reason = f"{task.malformed} was one longer than it should be, and values came back"
    symptom = _symptom(DISAGREES, ACCEPTED, tuple(reply.answers), math.nan)
    return {"verdict": DISAGREES, "reason": reason, "symptoms": [symptom]}


def _symptom(verdict: str, fault: str, quantities: Sequence[str], rel_err: float, detailed: str = "") -> dict[str, Any]:
    return {
        "verdict": verdict, "fault": fault, "quantities": list(quantities), "rel_err": rel_err, "detailed": detailed
    }  # fmt: skip


def _worst(judged: Judged) -> float:
    """Worst relative error among a quantity's wrong elements; infinite where the truth is zero."""
    with np.errstate(all="ignore"):
        errors = [block.rel_err[block.abs_err > block.tolerance] for block in judged.blocks]
    found = np.concatenate([error.ravel() for error in errors]) if errors else np.zeros(0)
    found = found[~np.isnan(found)]
    return float(found.max()) if len(found) else math.nan
