"""The worker's side: a process of its own that opens one backend and answers tasks until its channel closes.

``bridge.workers`` starts it through execnet. A backend module offers ``open_backend(**options)``, which returns an
object with ``info`` (versions, as text), ``run(task, variant) -> Reply`` and ``disturb()``.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import signal
import threading
import time
from typing import Any, Protocol

import numpy as np

from bridge.answers import CRASHED, UNSUPPORTED, Reply, Task, first_line, same_bits
from bridge.errors import UnsupportedError


class ServedBackend(Protocol):
    """What a backend module's ``open_backend`` returns."""

    info: dict[str, str]

    def run(self, task: Task, variant: str) -> Reply:
        """Compute what the task's case requests, on freshly made arrays."""

    def disturb(self) -> None:
        """Make memory that is read before it is written show: allocate, fill, free."""


def serve(channel: Any, launch: dict[str, Any]) -> None:
    """Open the backend that ``launch`` names, then answer each task on the channel with a reply."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with_parent()
    if launch["log"]:
        log = os.open(launch["log"], os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 2)
        os.close(log)
    channel.send({"pid": os.getpid()})
    try:
        backend: ServedBackend = importlib.import_module(launch["module"]).open_backend(**launch["options"])
    except Exception as error:
        channel.send({"failed": first_line(error)})
        return
    channel.send({"info": {key: str(value) for key, value in backend.info.items()}})
    for message in channel:
        channel.send(answer(backend, Task.from_plain(message["task"]), message["variant"]).to_plain())


def answer(backend: ServedBackend, task: Task, variant: str) -> Reply:
    """Run a task twice, with the allocator disturbed before each, and say where the bits differ."""
    try:
        backend.disturb()
        first = backend.run(task, variant)
        backend.disturb()
        second = backend.run(task, variant)
    except UnsupportedError as error:
        return Reply.without_values(task.case.quantities, UNSUPPORTED, str(error))
    except Exception as error:
        verdict = UNSUPPORTED if task.malformed else CRASHED  # wrong input is rightly refused
        return Reply.without_values(task.case.quantities, verdict, first_line(error))
    answers = {}
    for name, one in first.answers.items():
        other = second.answers[name]
        repeated = same_bits(one.values, other.values) and one.nothing == other.nothing
        answers[name] = one if repeated else dataclasses.replace(one, again=_or_nan(other.values, one.values))
    return dataclasses.replace(first, answers=answers)


def _or_nan(values: Any, like: Any) -> Any:
    """Return the values, or NaN in the shape of ``like`` where there are none."""
    if values is not None:
        return values
    if isinstance(like, tuple):
        return tuple(tuple(np.full_like(array, np.nan) for array in row) for row in like)
    return np.full_like(like, np.nan)


def end_with_parent() -> None:
    """End this process when its parent is gone, even if it sits in a framework's C code."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
