"""From a case that shows a fault to the smallest that does, by Hypothesis's shrinker."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException, NoSuchExample

from bridge.answers import Task
from bridge.case import Case
from bridge.strategies import cases

CALLS = 600
"""Cases that one shrinking may try; then the smallest so far stands."""

Shows = Callable[[Task], bool]
"""Whether a task shows the fault."""


def shrink(task: Task, shows: Shows, calls: int = CALLS, sizes: Sequence[float] = (1.0,)) -> Task:
    """Return the smallest task found that shows the fault; ``task`` itself shows it.

    Mode, dtype, what is requested and how the backend is called stay as they are; layers, directions, steps, batch,
    sizes, head gradients and numbers shrink. Searched first among small sizes, then up to the task's own. Deterministic
    where the backend is.

    Parameters
    ----------
    task : a task that shows it.
    shows : asks the backend.
    calls : how often at most.
    sizes : of the numbers in the sequence, the simplest first.
    """
    best = _Best(task, shows, calls)
    case = task.case
    for bounds in _bounds(case):
        drawn = cases(
            modes=[case.mode],
            dtypes=[case.dtype],
            requested=case.requested,
            bidirectional=sorted({False, case.bidirectional}),
            heads=list(dict.fromkeys(["ones", _head(case)])),
            **bounds,
        )
        strategy = st.builds(_times, drawn, st.sampled_from(sizes))
        with contextlib.suppress(NoSuchExample, HypothesisException):
            hypothesis.find(strategy, best.shows, settings=_SETTINGS, random=random.Random(0))
        if best.found:
            break
    return best.task


def _times(case: Case, size: float) -> Case:
    return case if size == 1 else case.replace(x=np.rint(10 * case.x) * size)  # whole numbers of it read well


class _Best:
    """Remembers the last task that showed the fault, which is the shrinker's best, and stops it after enough calls."""

    def __init__(self, task: Task, shows: Shows, calls: int) -> None:
        self.task, self.ask, self.left = task, shows, calls
        self.found = False
        self.known: dict[str, bool] = {}

    def shows(self, case: Case) -> bool:
        digest = case.digest()
        if digest not in self.known:
            if self.left == 0:
                return False
            self.left -= 1
            task = dataclasses.replace(self.task, case=case, seq_len=case.seq_len)
            self.known[digest] = self.ask(task)
            if self.known[digest]:
                self.task, self.found = task, True
        return self.known[digest]


_SETTINGS = hypothesis.settings(
    max_examples=150,
    database=None,
    deadline=None,
    derandomize=False,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    verbosity=hypothesis.Verbosity.quiet,
)


def _bounds(case: Case) -> Iterator[dict[str, int]]:
    """Bounds to search within: the case's cells with small sizes, then its own sizes."""
    for steps, batch, size in ((3, 1, 2), (8, 2, 4), (case.seq_len, case.batch, 32)):
        yield {
            "max_layers": case.layers,
            "max_seq_len": min(steps, case.seq_len),
            "max_batch": min(batch, case.batch),
            "max_input_size": min(size, case.input_size),
            "max_hidden_size": min(size, case.hidden_size),
        }


def _head(case: Case) -> str:
    if isinstance(case.head, str):
        return case.head
    return "given and final states" if case.head_hn is not None else "given"
