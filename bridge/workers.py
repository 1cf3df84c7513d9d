"""Starts a backend in a process of its own, feeds it cases, and survives its death. The transport is execnet's."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.answers import CRASHED, TIMED_OUT, UNAVAILABLE, Reply, Task, first_line

if TYPE_CHECKING:
    import psutil

# execnet and psutil are imported where a worker starts: a foreign interpreter that serves a backend has neither.

START_TIMEOUT = 120.0
"""Seconds a backend may take until it is ready, unless its launch says otherwise."""

AHEAD = 4
"""Tasks that lie at a worker, the one it computes among them: it need not wait for a parent that is busy."""

_BOOT = """
launch = channel.receive()
import sys
sys.path[:0] = launch["path"]
from bridge.serve import serve
serve(channel, launch)
"""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_PACKAGE_ROOT = str(Path(__file__).resolve().parent.parent)


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a backend's process is started.

    Attributes
    ----------
    module : importable module with ``open_backend(**options)``; see :mod:`bridge.serve`.
    options : plain values handed to it.
    env : environment variables set for the process, beside one BLAS/OpenMP thread.
    python : the interpreter; this one by default.
    path : folders put before its ``sys.path``.
    start_timeout : seconds until it must be ready.
    lifetime : answers after which a new process is started for the next tasks, where the framework loses memory.
    """

    module: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python: str = sys.executable
    path: tuple[str, ...] = ()
    start_timeout: float = START_TIMEOUT
    lifetime: float = math.inf


class WorkerError(Exception):
    """The process did not answer; ``verdict`` and text say how it ended."""

    def __init__(self, verdict: str, reason: str) -> None:
        self.verdict = verdict
        super().__init__(reason)


class Worker:
    """One backend process: started on first use, started again after a death.

    Parameters
    ----------
    launch : Launch
    timeout : float
        Seconds one task may take before the process is killed and the task called ``timed out``.
    says : callable, optional
        Called with a line while the process starts (its own last line of output, for slow starters).

    Attributes
    ----------
    info : dict or None
        What the backend said of itself (versions) when it was ready.
    """

    def __init__(self, launch: Launch, timeout: float, says: Callable[[str], None] | None = None) -> None:
        self.launch, self.timeout, self.says = launch, timeout, says
        self.info: dict[str, str] | None = None
        self.broken: WorkerError | None = None
        self._group: Any = None
        self._channel: Any = None
        self._process: psutil.Process | None = None
        self._log: Path | None = None
        self._lock = threading.Lock()
        self._answered = 0

    def ask(self, task: Task, variant: str = "") -> Reply:
        """Have a variant of the backend compute one task; death and hang are verdicts, never exceptions."""
        return next(self.ask_all([task], variant))

    def ask_all(self, tasks: Sequence[Task], variant: str = "") -> Iterator[Reply]:
        """Have tasks computed one after another and yield the replies; some are sent ahead, so that it never waits.

        What dies or hangs costs its own task alone: the others are sent again, to a new process.
        """
        done = sent = 0
        try:
            while done < len(tasks):
                try:
                    self._ready()
                    while done < len(tasks):
                        for task in tasks[sent : done + AHEAD]:
                            self._send({"task": task.to_plain(), "variant": variant})
                            sent += 1
                        reply = Reply.from_plain(self._receive(self.timeout))
                        done += 1
                        self._answered += 1
                        yield reply
                except (TimeoutError, WorkerError) as error:
                    verdict, reason = TIMED_OUT, f"no answer after {self.timeout:g} s"
                    if isinstance(error, WorkerError):
                        verdict, reason = error.verdict, str(error)
                    self.stop()
                    sent = done = done + 1
                    yield Reply.without_values(tasks[done - 1].case.quantities, verdict, reason)
        finally:
            if sent > done:  # nobody wants the rest, and the next task must not be given their replies
                self.stop()

    def start(self) -> dict[str, str]:
        """Start the process if it does not run and return what the backend says of itself.

        Raises
        ------
        WorkerError
            When it cannot be started; the same error again on later calls.
        """
        self._ready()
        assert self.info is not None
        return self.info

    def stop(self) -> None:
        """End the process and its children, without waiting for what they do. Safe from any thread."""
        with self._lock:
            process, group, log = self._process, self._group, self._log
            self._process = self._group = self._channel = self._log = None
        if process is not None:
            import psutil

            with contextlib.suppress(psutil.Error):
                for child in [*process.children(recursive=True), process]:
                    with contextlib.suppress(psutil.Error):
                        child.kill()
        if group is not None:
            group.terminate(timeout=1.0)
        if log is not None:
            log.unlink(missing_ok=True)

    # -- starting ------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        if self.broken is not None:
            raise self.broken
        if self._answered >= self.launch.lifetime:
            self.stop()
        if self._channel is not None:
            return
        self._answered = 0
        try:
            self._start()
        except WorkerError as error:
            self.stop()
            self.broken = error
            raise

    def _start(self) -> None:
        import execnet
        import psutil

        launch = self.launch
        if shutil.which(launch.python) is None:
            raise WorkerError(UNAVAILABLE, f"there is no interpreter {launch.python}")
        descriptor, name = tempfile.mkstemp(prefix="gradbridge-", suffix=".log")
        os.close(descriptor)
        self._log = Path(name)
        spec = execnet.XSpec("popen//execmodel=main_thread_only")
        # execnet sets a spec's own `env` after the start, too late for LD_LIBRARY_PATH and PYTHONPATH
        variables = [f"{key}={value}" for key, value in {**_ONE_THREAD, **launch.env}.items()]
        spec.python = shlex.join(["env", *variables, launch.python])
        self._group = execnet.Group()
        try:
            gateway = self._group.makegateway(spec)
            self._channel = gateway.remote_exec(_BOOT)
            plain = {
                "module": launch.module,
                "options": dict(launch.options),
                "path": [*launch.path, _PACKAGE_ROOT],
                "log": name,
            }
            self._channel.send(plain)
            self._process = psutil.Process(self._receive(launch.start_timeout)["pid"])
            message = self._receive(launch.start_timeout, starting=True)
        except TimeoutError:
            raise WorkerError(TIMED_OUT, f"not ready after {launch.start_timeout:g} s") from None
        except (OSError, EOFError, execnet.HostNotFound) as error:
            raise WorkerError(UNAVAILABLE, f"cannot start {launch.python}: {first_line(error)}") from None
        if "failed" in message:
            raise WorkerError(UNAVAILABLE, message["failed"])
        self.info = message["info"]

    def _send(self, message: dict[str, Any]) -> None:
        channel = self._channel
        if channel is not None:  # else another thread has stopped it, as receiving will tell
            with contextlib.suppress(OSError):  # it is dead; what it still said is received first, then how it ended
                channel.send(message)

    def _receive(self, timeout: float, starting: bool = False) -> Any:
        deadline = time.monotonic() + timeout
        channel = self._channel
        if channel is None:
            raise WorkerError(CRASHED, "stopped")
        while True:
            left = deadline - time.monotonic()
            try:
                return channel.receive(timeout=max(0.0, min(left, 1.0) if starting and self.says else left))
            except channel.TimeoutError:
                if time.monotonic() >= deadline:
                    raise TimeoutError from None
                self._tell()
            except channel.RemoteError as error:
                self.stop()
                raise WorkerError(CRASHED, first_line(str(error).strip().splitlines()[-1])) from None
            except EOFError:
                ending = self._ending()
                self.stop()
                raise WorkerError(CRASHED, ending) from None

    def _tell(self) -> None:
        last = self._last_line()
        if self.says is not None and last:
            self.says(last)

    def _last_line(self) -> str:
        if self._log is None or not self._log.exists():
            return ""
        lines = self._log.read_text(errors="replace").splitlines()[-20:]
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")

    def _ending(self) -> str:
        """Say how the process ended: signal or exit code."""
        import psutil

        if self._process is None:
            return "the process ended before it said anything"
        try:
            code = self._process.wait(timeout=5)
        except psutil.Error:
            code = None
        if code is None:
            return "the process ended"
        if code < 0:
            return f"the process was killed by {signal.Signals(-code).name}"
        return f"the process ended with exit code {code}"
