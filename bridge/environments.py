"""``gradbridge env``: older framework versions, each in an isolated environment below the user's cache folder.

MXNet's are virtual environments that pip fills, ``envs/mxnet-1.9.1``. Flux's are juliapkg's, which installs Julia and
Flux on first use into a project of its own, ``flux-0.14``; here that first use is made at once. Either appears whole or
not at all: it is built in ``envs/.mxnet-1.9.1`` and renamed once a gradient was had from it, or, where it cannot be
moved, marked by a folder of such a name while it is not finished. The next process removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from filelock import FileLock, Timeout
from packaging.version import InvalidVersion, Version

import bridge
from bridge.answers import Task, first_line
from bridge.backends import flux, mxnet
from bridge.config import added_environments, cache_folder
from bridge.errors import BadInputError
from bridge.workers import WorkerError

Says = Callable[[str], None]
PROBE_TIMEOUT = 120.0
SHOWN_VERSIONS = 8
"""How many of a package's versions a refusal lists, the newest."""


class EnvironmentFailedError(Exception):
    """An environment could not be made; its text says why in one line."""


class Environment(Protocol):
    """One framework version in an environment of its own, there or to be made.

    Attributes
    ----------
    spec : as the user writes it, ``mxnet==1.9.1``.
    manager : who installs what is in it.
    folder : where it is, or will be.
    """

    @property
    def spec(self) -> str: ...  # noqa: D102

    @property
    def manager(self) -> str: ...  # noqa: D102

    @property
    def folder(self) -> Path: ...  # noqa: D102

    def create(self, unfinished: Path, says: Says) -> None:
        """Make it, by way of a folder that marks what is not finished; its caller removes both if this raises."""


@dataclasses.dataclass(frozen=True)
class PipEnvironment:
    """A virtual environment with one MXNet, made with the interpreter that runs gradbridge."""

    distribution: str
    version: Version
    manager: str = "pip"

    @property
    def spec(self) -> str:
        """``mxnet==1.9.1``."""
        return f"{self.distribution}=={self.version}"

    @property
    def line(self) -> str:
        """What its backends' names start with."""
        return f"{self.distribution}-{self.version}"

    @property
    def folder(self) -> Path:
        """The virtual environment."""
        return _envs() / self.line

    def create(self, unfinished: Path, says: Says) -> None:
        """Install, compute a gradient, rename."""
        says(f"{self.spec}: pip installs it in an environment of its own")
        venv.create(unfinished, symlinks=True)
        python = unfinished / "bin" / "python"
        self._install(python, says)
        says(f"{self.spec}: trying it")
        self._probe(python)
        unfinished.rename(self.folder)

    def _install(self, python: Path, says: Says) -> None:
        command = [sys.executable, "-I", "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check"]
        command += ["--no-input", "--progress-bar", "off", "--only-binary", ":all:", self.spec, *mxnet.BESIDE]
        lines = []
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": ""},
            start_new_session=True,  # pip starts another pip with the environment's interpreter; both end together
        ) as pip:
            assert pip.stdout is not None
            try:
                for line in map(str.strip, pip.stdout):
                    lines.append(line)
                    if line.startswith(f"Downloading {self.distribution.replace('-', '_')}"):
                        says(line)
            except BaseException:
                os.killpg(pip.pid, signal.SIGKILL)
                raise
        if pip.returncode:
            raise self._explained("\n".join(lines))

    def _explained(self, said: str) -> Exception:
        """Make a refusal or a failure out of what pip printed."""
        offered = re.search(rf"requirement {re.escape(self.spec)} \(from versions: ([^)]*)\)", said)
        if offered and offered[1] != "none":
            known = offered[1].split(", ")[-SHOWN_VERSIONS:]
            return BadInputError(
                self.spec, "", f"a version that pip finds for this Python, such as {', '.join(known)}", "none"
            )
        if broken := re.search(r"connection broken by '(\w+)\(.*?(\[Errno -?\d+\] [\w ]+)?'?\)", said):
            return EnvironmentFailedError(f"pip reaches no package index ({broken[2] or broken[1]})")
        errors = re.findall(r"^ERROR: (?!Ignored the following)(.*)", said, re.M)
        return EnvironmentFailedError(f"pip says: {[*errors, *said.splitlines()[-1:], 'nothing'][0]}")

    def _probe(self, python: Path) -> None:
        """Have the environment's MXNet compute a tiny gradient."""
        (backend,) = [b for b in mxnet.variants(self.line, str(python)) if b.name.endswith("/unrolled")]
        session = backend.open(PROBE_TIMEOUT)
        case = bridge.load_case("flux-1547")
        try:
            version = session.start()["version"]
            if version != str(self.version):
                found = f"{self.distribution}=={version}"
                raise BadInputError(self.spec, "", f"the version in full, {found}", str(self.version))
            answers = session.ask(Task(case, case.seq_len)).answers
        except WorkerError as error:
            raise EnvironmentFailedError(f"it was installed, but does not start: {error}") from None
        finally:
            session.stop()
        for quantity in ("y", "dx"):
            answer = answers[quantity]
            if answer.verdict:
                raise EnvironmentFailedError(f"it starts, but gives no gradient: {answer.reason or answer.verdict}")
            if not np.isfinite(np.asarray(answer.values)).all():
                raise EnvironmentFailedError(f"it starts, but {quantity} of {case.name} is not finite")


@dataclasses.dataclass(frozen=True)
class JuliaEnvironment:
    """A Flux line in the Julia project that juliapkg keeps for it."""

    key: str
    manager: str = "juliapkg"

    @property
    def spec(self) -> str:
        """``flux==0.14``."""
        return f"flux=={self.key}"

    @property
    def line(self) -> flux.Line:
        """How it starts, and whether it is there."""
        (found,) = [line for line in flux.managed_lines() if line.version == flux.MANAGED[self.key]]
        return found

    @property
    def folder(self) -> Path:
        """The Julia project."""
        return cache_folder() / f"flux-{self.key}"

    def create(self, unfinished: Path, says: Says) -> None:
        """Start it once; Julia's projects hold absolute paths and cannot be renamed."""
        says(f"{self.spec}: juliapkg installs Julia and Flux {flux.MANAGED[self.key]}, which takes minutes")
        unfinished.mkdir()
        try:
            flux.look(self.line, lambda line: says(f"{self.spec}: {line}"))
        except WorkerError as error:
            raise EnvironmentFailedError(
                f"juliapkg, which installs Julia and Flux for it, failed: {error} "
                "(a Julia of your own that has Flux can be named in gradbridge.toml)"
            ) from None
        unfinished.rmdir()


def parse(spec: str) -> Environment:
    """Read what the user wrote.

    Raises
    ------
    BadInputError
        When nothing of that name can have an environment.
    """
    name, equals, text = spec.replace(" ", "").partition("==")
    lines = " or ".join(f"flux=={key}" for key in flux.MANAGED)
    if equals and name == "flux":
        for key, version in flux.MANAGED.items():
            if text in (key, version):
                return JuliaEnvironment(key)
        raise BadInputError(
            spec, "", f"{lines}, which juliapkg can install (others: [[flux]] in gradbridge.toml)", text
        )
    if equals and name in mxnet.DISTRIBUTIONS:
        with contextlib.suppress(InvalidVersion):
            return PipEnvironment(name, Version(text))
    kinds = ", ".join(f"{distribution}==VERSION" for distribution in mxnet.DISTRIBUTIONS)
    raise BadInputError("environment", "", f"{kinds}, {lines}", repr(spec))


def add(spec: str, says: Says) -> str:
    """Make an environment, whole or not at all; returns a line that says where it is.

    Raises
    ------
    BadInputError
        For an unknown specification or version, and a cache folder that cannot be written.
    EnvironmentFailedError
        When it could not be made. Nothing is left of it.
    """
    wanted = parse(spec)
    with _alone(says):
        if wanted in present():
            return f"{wanted.spec} is there already: {wanted.folder}"
        if any(b.name.startswith(f"{wanted.folder.name}/") and not b.unavailable for b in mxnet.backends()):
            return f"{wanted.spec} is installed in this Python already"
        unfinished = _envs() / f".{wanted.folder.name}"
        try:
            wanted.create(unfinished, says)
        except BaseException as error:
            _discard(unfinished)
            if isinstance(error, OSError):
                raise EnvironmentFailedError(_failed(wanted, error.strerror or str(error))) from None
            if isinstance(error, EnvironmentFailedError):
                raise EnvironmentFailedError(_failed(wanted, first_line(str(error)))) from None
            raise
    return f"{wanted.spec} is ready: {wanted.folder}"


def _failed(wanted: Environment, why: str) -> str:
    return f"{wanted.spec} could not be made; nothing is left of it: {why}"


def remove(spec: str, says: Says) -> str:
    """Remove an environment; returns a line that says so.

    Raises
    ------
    BadInputError
        For one that is not there.
    """
    wanted = parse(spec)
    with _alone(says):
        there = present()
        if wanted not in there:
            known = " or ".join(one.spec for one in there) or "an environment that is there (there is none)"
            raise BadInputError("environment", "", known, wanted.spec)
        wanted = there[there.index(wanted)]  # whose version is written in full
        unfinished = _envs() / f".{wanted.folder.name}"
        if isinstance(wanted, JuliaEnvironment):
            unfinished.mkdir()
        else:
            wanted.folder.rename(unfinished)
        _discard(unfinished)
    return f"{wanted.spec} is removed"


def present() -> list[Environment]:
    """Every environment that is there."""
    found = [parse("==".join(line.rsplit("-", 1))) for line in added_environments()]
    return found + [one for one in map(JuliaEnvironment, flux.MANAGED) if one.line.installed]


def size(environment: Environment) -> int:
    """Bytes that its files take."""
    return sum(path.lstat().st_size for path in environment.folder.rglob("*"))


def sweep(says: Says) -> None:
    """Remove what killed processes left, unless another one is at work."""
    if _envs().is_dir():
        with contextlib.suppress(Timeout), _alone(says, wait=False):
            pass


def _envs() -> Path:
    return cache_folder() / "envs"


@contextlib.contextmanager
def _alone(says: Says, wait: bool = True) -> Iterator[None]:
    """Hold the lock, and begin by removing what a killed process left."""
    try:
        _envs().mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache_folder() / "envs.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if not wait:
                raise
            says("another `gradbridge env` is at work; waiting for it")
            lock.acquire()
    except Timeout:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInputError(str(cache_folder()), "", "a folder that can be written", reason) from None
    try:
        for unfinished in sorted(_envs().glob(".*")):
            _discard(unfinished)
            says(f"removed what an interrupted `gradbridge env` left of {unfinished.name[1:]}")
        yield
    finally:
        lock.release()


def _discard(unfinished: Path) -> None:
    """Remove an unfinished environment: the folder itself, or, for a line of juliapkg's, the project that it marks."""
    project = cache_folder() / unfinished.name[1:]
    if project.name.removeprefix("flux-") in flux.MANAGED:
        shutil.rmtree(project, ignore_errors=True)
    shutil.rmtree(unfinished, ignore_errors=True)
