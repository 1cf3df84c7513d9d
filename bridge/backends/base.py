"""What the rest of the house knows of a backend: its name, what it is, and how to get its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
    def accumulates(self) -> bool:
        """Whether it knows of :attr:`bridge.answers.Task.accumulate`."""

    def open(self, timeout: float | None, says: Callable[[str], None] | None = None) -> Session:
        """Begin; nothing is started before the session's first use."""


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
    workarounds, varies, accumulates : as in :class:`Backend`.
    """

    name: str
    about: str
    launch: Launch
    unavailable: str = ""
    source: str = "live"
    workarounds: tuple[Workaround, ...] = ()
    varies: bool = True
    accumulates: bool = False

    @property
    def group(self) -> str:
        """A process of its own."""
        return self.name

    def open(self, timeout: float | None, says: Callable[[str], None] | None = None) -> Session:
        """Begin a worker, or a session that says why there is none."""
        if self.unavailable:
            return Absent(self.unavailable)
        return Worker(self.launch, timeout or DEFAULT_TIMEOUT, says)
