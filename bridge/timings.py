"""Where a run's time goes."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Phase:
    """One part of a run.

    Attributes
    ----------
    name : what was done.
    seconds : how long it took.
    processor : seconds of the processor that this process used meanwhile, in all its threads.
    """

    name: str
    seconds: float
    processor: float


class Timings:
    """The phases of a run, in order; one does not lie inside another."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []

    def since_start(self, name: str) -> None:
        """Take all that this process has done so far as the first phase."""
        import psutil

        started = psutil.Process().create_time()
        self.phases.append(Phase(name, time.time() - started, time.process_time()))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done inside, however it ends."""
        began, used = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            self.phases.append(Phase(name, time.monotonic() - began, time.process_time() - used))
