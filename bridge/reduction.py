"""From a kind of disagreement to its smallest case and a script that shows it, where the backend lives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bridge.answers import CRASHED, TIMED_OUT, Task
from bridge.batches import Assignment, Bench, bench_of, examine
from bridge.faults import Matcher
from bridge.kinds import Kind
from bridge.reproducers import Fault, Reproducer, Wanted, reproduce
from bridge.shrinking import CALLS, shrink
from bridge.space import sample
from bridge.tolerance import truth
from bridge.verdicts import NOT_FINITE

_COMPILED = 120  # calls where every new element type, size of a stack or head is compiled first
_CALLS = {CRASHED: 40, TIMED_OUT: 0}  # each costs a new process, or the whole time limit

_LARGE = {"float32": 1e29, "float64": 1e39}  # what overflows where squares, or float32 intermediates, are formed


@dataclasses.dataclass(frozen=True)
class Reduced:
    """A kind's smallest case.

    Attributes
    ----------
    task : the case, and how the backend was asked.
    reproducer : the script that showed the fault when it was run, or None where none did.
    """

    task: Task
    reproducer: Reproducer | None

    @property
    def script_name(self) -> str:
        """The script's file name, or nothing."""
        return self.reproducer.name if self.reproducer else ""

    @property
    def files(self) -> Mapping[str, str]:
        """The script and its bug report, by file name."""
        return self.reproducer.files if self.reproducer else {}


def reduce(assignment: Assignment, kinds: tuple[Kind, ...]) -> list[Reduced]:
    """Shrink kinds that backends of one line show alike on the same case; the first one's result is tried for all."""
    wanted: list[Wanted] = []
    with bench_of(assignment) as bench:
        for kind in kinds:
            begin = next((one.task for one in wanted if shows(bench, kind, one.task)), None)
            task = begin or _shrunk(bench, kind, assignment)
            fault = Fault(kind.name, kind.title, kind.what, kind.when, kind.verdict, kind.quantities)
            wanted.append(Wanted(bench.backends[kind.backend], task, fault, bench.sessions[kind.backend].start()))
        return [Reduced(one.task, made) for one, made in zip(wanted, reproduce(wanted), strict=True)]


def _shrunk(bench: Bench, kind: Kind, assignment: Assignment) -> Task:
    task = sample(assignment.seed, kind.indices[0]).task
    usual = CALLS if bench.backends[kind.backend].varies else _COMPILED
    sizes = (1.0, _LARGE[task.case.dtype]) if kind.verdict == NOT_FINITE else (1.0,)
    return shrink(task, lambda smaller: shows(bench, kind, smaller), _CALLS.get(kind.verdict, usual), sizes)


def shows(bench: Bench, kind: Kind, task: Task) -> bool:
    """Whether a backend shows a kind of disagreement on a task."""
    known = None if task.malformed else truth(task)
    result = examine(kind.backend, task, known, bench.ask(kind.backend, task), Matcher())
    return any((one["verdict"], one["fault"]) == (kind.verdict, kind.fault) for one in result["symptoms"])
