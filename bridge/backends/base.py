"""What the rest of the house knows of a backend: its name, what it is, and how to get its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from bridge.answers import UNAVAILABLE, Reply, Task
from bridge.options import Workaround
from bridge.workers import Launch, Worker, WorkerError

DEFAULT_TIMEOUT = 60.0
"""Seconds a backend may take over one task, unless the run or the backend says otherwise."""


class Session(Protocol):
    """A backend at work."""

    def start(self) -> dict[str, str]:
        """Make ready and return what the backend says of itself; raises :class:`bridge.workers.WorkerError`."""

    def ask(self, task: Task) -> Reply:
        """Compute one task. Whatever goes wrong is a verdict in the reply."""

    def stop(self) -> None:
        """End at once. Safe from any thread."""


def ask_all(session: Session, tasks: Sequence[Task]) -> Iterator[Reply]:
    """Compute tasks one after another; a worker has the next ones at hand already."""
    if isinstance(session, WorkerSession):
        return session.worker.ask_all(tasks, session.variant)
    return map(session.ask, tasks)


class Backend(Protocol):
    """One way of computing the gradients of a case."""

    @property
    def name(self) -> str:
        """``framework-version/variant``."""

    @property
    def about(self) -> str:
        """One line on what it does."""

    @property
    def source(self) -> str:
        """``live`` or ``recorded``."""

    @property
    def group(self) -> str:
        """Backends of one group share a process (or file) and are asked one after another."""

    @property
    def workarounds(self) -> tuple[Workaround, ...]:
        """What its user could do instead, should it be wrong."""

    @property
    def varies(self) -> bool:
        """Whether it can be asked varied cases at little cost."""

    @property
    def understands(self) -> tuple[str, ...]:
        """What it knows of :data:`bridge.answers.SPECIAL`."""

    def open(
        self,
        timeout: float | None,
        says: Callable[[str], None] | None = None,
        workers: dict[str, Worker] | None = None,
    ) -> Session:
        """Begin; nothing is started before the session's first use.

        ``workers`` holds the processes of a run by group: backends of one group share theirs.
        """


class Absent:
    """The session of a backend that cannot run here; every task gets the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def start(self) -> dict[str, str]:
        """Raise the reason."""
        raise WorkerError(UNAVAILABLE, self.reason)

    def ask(self, task: Task) -> Reply:
        """Answer with the reason."""
        return Reply.without_values(task.case.quantities, UNAVAILABLE, self.reason)

    def stop(self) -> None:
        """Do nothing."""


@dataclasses.dataclass(frozen=True)
class LiveBackend:
    """A backend that runs in a worker process.

    Attributes
    ----------
    name, about : as in :class:`Backend`.
    launch : how its worker process is started.
    unavailable : why it cannot run here, with the command that would bring it; empty where it can.
    variant : what the worker is told to compute; backends that share a process differ in it.
    group : as in :class:`Backend`; a process of its own by default.
    workarounds, varies, understands : as in :class:`Backend`.
    """

    name: str
    about: str
    launch: Launch
    unavailable: str = ""
    variant: str = ""
    group: str = ""
    source: str = "live"
    workarounds: tuple[Workaround, ...] = ()
    varies: bool = True
    understands: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", self.group or self.name)

    def open(
        self,
        timeout: float | None,
        says: Callable[[str], None] | None = None,
        workers: dict[str, Worker] | None = None,
    ) -> Session:
        """Begin in the group's worker, or a session that says why there is none."""
        if self.unavailable:
            return Absent(self.unavailable)
        return WorkerSession(shared(workers, self.group, self.launch, timeout or DEFAULT_TIMEOUT, says), self.variant)


def shared(
    workers: dict[str, Worker] | None,
    group: str,
    launch: Launch,
    timeout: float,
    says: Callable[[str], None] | None,
) -> Worker:
    """Return a group's worker, made where there is none yet."""
    if workers is None:
        workers = {}
    if group not in workers:
        workers[group] = Worker(launch, timeout, says)
    return workers[group]


class WorkerSession:
    """One variant's view of a worker."""

    def __init__(self, worker: Worker, variant: str) -> None:
        self.worker, self.variant = worker, variant

    def start(self) -> dict[str, str]:
        """Start the worker if need be."""
        return self.worker.start()

    def ask(self, task: Task) -> Reply:
        """Have the worker compute the task in this variant."""
        return self.worker.ask(task, self.variant)

    def stop(self) -> None:
        """End the worker."""
        self.worker.stop()
