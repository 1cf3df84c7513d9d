"""A user's own implementation as a backend: any callable ``(case) -> dict of arrays``.

It runs in this process (:func:`as_backend`), or in a worker of its own where an installed package names it as an entry
point of the group ``gradbridge.backends``. ``docs/writing-a-backend.md`` describes what it gets and gives.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import platform
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bridge.answers import CRASHED, UNSUPPORTED, Answer, Reply, Task, first_line
from bridge.arithmetic import Array
from bridge.backends.base import LiveBackend
from bridge.case import QUANTITIES, QUANTITY_ORDER, Case
from bridge.errors import BadInputError, UnsupportedError
from bridge.options import Workaround
from bridge.serve import answer
from bridge.workers import Launch, Worker

GROUP = "gradbridge.backends"
"""The entry point group in which a package names its backends."""

Function = Callable[[Case], Mapping[str, Any]]


# -- in this process ---------------------------------------------------------------------------------------------


def as_backend(function: Function, name: str | None = None) -> CallableBackend:
    """Make a backend of a Python callable, for :func:`bridge.compare` and the pytest plugin.

    Parameters
    ----------
    function : callable ``(case) -> dict``
        Gets a :class:`bridge.Case` and returns quantity -> array: ``y (T, B, D*H)``, ``dx (T, B, I)``, ``dh0`` and
        ``dc0 (layers*D, B, H)``; ``dweight_ih``, ``dweight_hh``, ``dbias_ih``, ``dbias_hh`` as ``[layer][direction]``
        of arrays shaped like the parameters, or as that one array where there is one layer in one direction. Only
        what the case requests is looked at.
    name : str, optional
        ``framework-version/variant``; ``callable/`` and the function's own name by default.

    Returns
    -------
    CallableBackend
        It runs in this process, two calls per task: a hang or a crash of the interpreter ends the run.

    Raises
    ------
    BadInputError
        For what cannot be called, or a name without its parts.
    """
    if not callable(function):
        raise BadInputError("backend", "", "a callable (case) -> dict of arrays", type(function).__name__)
    if name is None:
        name = "callable/" + re.sub(r"[\s/]+", "-", _own_name(function))
    if not isinstance(name, str) or not re.fullmatch(r"[^/\s]+/[^/\s]+", name):
        raise BadInputError("backend", "name", "framework-version/variant", repr(name))
    return CallableBackend(name, function)


def _own_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


@dataclasses.dataclass(frozen=True)
class CallableBackend:
    """A :class:`bridge.backends.base.Backend` around a callable of this process.

    Attributes
    ----------
    name, about, source, workarounds, varies, understands, group : as in :class:`bridge.backends.base.Backend`; all
        callables are of one group, since they share this process.
    function : the callable.
    """

    name: str
    function: Function
    about: str = "a callable of this process"
    source: str = "live"
    group: str = "this process"
    workarounds: tuple[Workaround, ...] = ()
    varies: bool = True
    understands: tuple[str, ...] = ()

    def open(
        self,
        timeout: float | None,
        says: Callable[[str], None] | None = None,
        workers: dict[str, Worker] | None = None,
    ) -> InProcess:
        """Begin; there is nothing to start and no way to stop a call, so that ``timeout`` has no effect."""
        return InProcess(Served(self.function, {"framework": self.name.partition("/")[0]}))


class InProcess:
    """The session of a callable."""

    def __init__(self, served: Served) -> None:
        self.served = served

    def start(self) -> dict[str, str]:
        """Return what is known of it."""
        return self.served.info

    def ask(self, task: Task) -> Reply:
        """Call it twice and say where the bits differ; what it raises is a verdict."""
        return answer(self.served, task, "")

    def stop(self) -> None:
        """Do nothing."""


# -- in a worker -------------------------------------------------------------------------------------------------


def entry_point_backends() -> list[LiveBackend]:
    """Every backend that an installed package names, as ``distribution-version/entry point``, sorted.

    Nothing of those packages is imported here. One that is broken is ``unavailable`` with a reason when it is asked.
    """
    found: dict[str, LiveBackend] = {}
    seen = set()
    for package in importlib.metadata.distributions():
        framework, version = package.metadata["Name"] or "unknown", package.metadata["Version"] or "0"
        if GROUP not in (package.read_text("entry_points.txt") or "") or framework in seen:
            continue
        seen.add(framework)  # further ones of that name are shadowed by it
        for backend in _named_by(package, framework, version):
            found.setdefault(backend.name, backend)
    return [found[name] for name in sorted(found)]


def _named_by(package: importlib.metadata.Distribution, framework: str, version: str) -> list[LiveBackend]:
    line = re.sub(r"[\s/]", "-", f"{framework}-{version}")
    try:
        points = [point for point in package.entry_points if point.group == GROUP]
    except Exception as error:  # the parser raises whatever a malformed file makes it raise
        why = f"the entry points of {framework} {version} cannot be read: {first_line(error)}"
        return [LiveBackend(f"{line}/unreadable", "", Launch(__name__), why)]
    return [
        LiveBackend(
            f"{line}/{re.sub('[^!-.0-~]', '-', point.name)}",
            f"{point.value} of {framework} {version}",
            Launch(__name__, {"value": point.value, "framework": framework, "version": version}),
        )
        for point in points
    ]


def open_backend(value: str, framework: str, version: str) -> Served:
    """Import a package's callable, in the worker.

    Raises
    ------
    ImportError, TypeError
        When it cannot be had, or not be called, naming the entry point.
    """
    where = f"entry point {value!r} of {framework} {version}"
    point = importlib.metadata.EntryPoint("", value, GROUP)
    if not point.pattern.match(value):
        raise ImportError(f"{where}: module:callable expected")
    try:
        function = point.load()
    except Exception as error:
        raise ImportError(f"{where}: {first_line(error)}") from None
    if not callable(function):
        raise TypeError(f"{where}: a callable expected, found {type(function).__name__}")
    info = {"framework": framework, "version": version, "python": platform.python_version(), "numpy": np.__version__}
    return Served(function, info)


# -- either way --------------------------------------------------------------------------------------------------


class Served:
    """A callable as :mod:`bridge.serve` asks it."""

    def __init__(self, function: Function, info: dict[str, str]) -> None:
        self.function, self.info = function, info
        self.poison = 12345.678

    def run(self, task: Task, variant: str) -> Reply:
        """Call it with the case that the task amounts to, and check what it returns.

        Raises
        ------
        UnsupportedError
            When it raises that, or NotImplementedError.
        TypeError, KeyError
            When it does not return a dict of quantities.
        """
        case = task.alone()
        try:
            given = self.function(case)
        except NotImplementedError as error:
            raise UnsupportedError(str(error) or "not implemented") from None
        if not isinstance(given, Mapping):
            raise TypeError(f"the callable returned {type(given).__name__}, not a dict of arrays")
        unknown = next((key for key in given if key not in QUANTITY_ORDER), None)
        if unknown is not None:
            raise ValueError(
                f"the callable returned the unknown key {unknown!r}; known are {', '.join(QUANTITY_ORDER)}"
            )
        return Reply({name: _checked(name, given.get(name), case) for name in case.quantities})

    def disturb(self) -> None:
        """Leave values in freed memory that a callable would show if it read before writing."""
        self.poison += 1
        held = [np.full(4**power, self.poison) for power in range(3, 9) for _ in range(4)]
        del held


def _checked(quantity: str, value: Any, case: Case) -> Answer:
    """Copy one quantity's values, since a buffer that is used again would look repeatable; or say what is wrong."""
    if value is None:
        return Answer(verdict=UNSUPPORTED, reason=f"the callable gave no {quantity}")
    try:
        if quantity not in QUANTITIES["params"]:
            return Answer(_array(quantity, value, _shape(quantity, case)))
        shapes = [[getattr(weights, quantity[1:]).shape for weights in cells] for cells in case.params]
        return Answer(_nested(quantity, value, shapes))
    except (TypeError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())
        return Answer(verdict=CRASHED, reason=first_line(text if text.startswith(quantity) else f"{quantity}: {text}"))


def _shape(quantity: str, case: Case) -> tuple[int, ...]:
    if quantity == "y":
        return case.seq_len, case.batch, case.directions * case.hidden_size
    return case.x.shape if quantity == "dx" else case.h0.shape


def _nested(quantity: str, value: Any, shapes: list[list[tuple[int, ...]]]) -> tuple[tuple[Array, ...], ...]:
    layers, directions = len(shapes), len(shapes[0])
    if layers == directions == 1 and np.ndim(value) == len(shapes[0][0]):
        value = [[value]]
    sizes = f"[layer][direction] of arrays, {layers} by {directions}"
    try:
        rows = [list(row) for row in value]
    except TypeError:
        raise ValueError(f"{quantity}: {sizes}, expected, found {type(value).__name__}") from None
    if [len(row) for row in rows] != [directions] * layers:
        found = f"{len(rows)} of {', '.join(map(str, sorted({len(row) for row in rows}))) or 'nothing'}"
        raise ValueError(f"{quantity}: {sizes}, expected, found {found}")
    return tuple(
        tuple(
            _array(f"{quantity}[{layer}][{direction}]", array, shapes[layer][direction])
            for direction, array in enumerate(row)
        )
        for layer, row in enumerate(rows)
    )


def _array(place: str, value: Any, shape: tuple[int, ...]) -> Array:
    array: Array = np.array(value)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{place}: real numbers expected, found {type(value).__name__} of dtype {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{place}: shape {shape} expected, found {array.shape}")
    return array
