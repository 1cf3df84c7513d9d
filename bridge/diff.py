"""What an upgrade changed: the findings of two saved runs, side by side."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from packaging.version import Version

from bridge.answers import CRASHED, TIMED_OUT
from bridge.backends.registry import BackendName
from bridge.errors import BadInputError
from bridge.report.saved import Saved
from bridge.verdicts import AGREES, WRONG

NEW, GONE, DIFFERENT, NOT_RUN = "new", "gone", "different", "not run"

Place = tuple[str, str, str]
"""Case (empty for a sweep's), backend, quantity."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One difference between two runs.

    Attributes
    ----------
    change : ``new``, ``gone``, ``different``, or ``not run``: wrong before, and the second run cannot say.
    case : empty for a sweep's.
    backend : framework and variant, without the version.
    quantities : those that changed alike.
    versions : the framework's in either run; empty where it was not in that run.
    faults : what was wrong in either run; ``agrees`` where nothing was, ``not run`` where it cannot be said.
    conditions : when it struck in either run.
    """

    change: str
    case: str
    backend: str
    quantities: tuple[str, ...]
    versions: tuple[str, str]
    faults: tuple[str, str]
    conditions: tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Diff:
    """Two runs side by side.

    Attributes
    ----------
    changes : ordered by kind, then as in the tables.
    versions : a line per framework whose versions differ, or that one run alone has.
    """

    changes: tuple[Change, ...]
    versions: tuple[str, ...]

    @property
    def new(self) -> tuple[Change, ...]:
        """The changes that are new findings."""
        return tuple(change for change in self.changes if change.change == NEW)


def diff(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Diff:
    """Compare the findings of two output folders.

    Backends of one name are compared with each other; the remaining ones of a framework and variant version by version,
    the newest with the newest.

    Raises
    ------
    BadInputError
        For a folder without a run's tables.
    """
    one, other = _Run(Path(first)), _Run(Path(second))
    pairs = list(_pairs(one.backends, other.backends))
    changes = [change for pair in pairs for change in _changes(one, other, *pair)]
    changes.sort(key=lambda change: (NEW, DIFFERENT, GONE, NOT_RUN).index(change.change))
    return Diff(tuple(changes), tuple(_versions(one, other, pairs)))


class _Run:
    """The tables of a folder that a diff needs.

    Attributes
    ----------
    backends : backend -> its versions, as words ``numpy=1.26.4``.
    faults : place -> the names of what is wrong there, with the condition of each.
    verdicts : place -> verdict; empty for a sweep, which has no summary.
    """

    def __init__(self, folder: Path) -> None:
        saved = Saved(folder)
        self.backends = dict.fromkeys(saved.manifest.backends, "")
        self.faults: dict[Place, dict[str, str]] = {}
        self.verdicts: dict[Place, str] = {}
        for row in _rows(saved, "findings", ("backend", "quantities", "fault", "condition")):
            for quantity in row["quantities"].split():
                place = row.get("case", ""), row["backend"], quantity
                self.faults.setdefault(place, {})[row["fault"]] = row["condition"]
        if saved.has("summary"):
            for row in _rows(saved, "summary", ("case", "backend", "quantity", "verdict")):
                self.verdicts[row["case"], row["backend"], row["quantity"]] = row["verdict"]
            rows = _rows(saved, "backends", ("backend", "state", "versions"))
            self.backends = {row["backend"]: row["versions"] for row in rows}

    def state(self, place: Place) -> str:
        """What is wrong at a place, ``agrees``, or ``not run``."""
        if place in self.faults:
            return " | ".join(sorted(self.faults[place]))
        verdict = self.verdicts.get(place, "")
        if verdict in (CRASHED, TIMED_OUT, *WRONG):
            return verdict
        ran = verdict == AGREES or (not self.verdicts and place[1] in self.backends)
        return AGREES if ran else NOT_RUN

    def condition(self, place: Place) -> str:
        """When what is wrong at a place strikes."""
        return " | ".join(condition for _, condition in sorted(self.faults.get(place, {}).items()) if condition)


def _rows(saved: Saved, name: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    table = saved.table(name)
    missing = next((column for column in columns if column not in table), None)
    if missing is not None:
        raise BadInputError(f"{saved.folder / name}.csv", missing, "that column", f"only {', '.join(table)}")
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


# -- which backend against which ---------------------------------------------------------------------------------


def _pairs(first: Iterable[str], second: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Pair the backends of two runs, by name, then by framework and variant; alone, paired with an empty name."""
    names = set(first), set(second)
    for name in dict.fromkeys([*first, *second]):
        if name in names[0] and name in names[1]:
            yield name, name
    rest = [[name for name in run if name not in names[0] & names[1]] for run in (first, second)]
    for kind in dict.fromkeys(kind_of(name) for run in rest for name in run):
        having = [sorted((n for n in run if kind_of(n) == kind), key=_age, reverse=True) for run in rest]
        yield from itertools.zip_longest(*having, fillvalue="")


def kind_of(backend: str) -> str:
    """Framework and variant without the version: ``mxnet/fused-native``."""
    name = BackendName.parse(backend)
    return f"{name.framework}/{name.variant}"


def _version(backend: str) -> str:
    """The line without the framework: ``2.0.0b1``, or ``native-1.8.0.post0`` of a build called mxnet-native."""
    name = BackendName.parse(backend)
    return name.line.removeprefix(f"{name.framework}-") if name.line != name.framework else ""


def _age(backend: str) -> tuple[Version, str]:
    return BackendName.parse(backend).age()


# -- what changed ------------------------------------------------------------------------------------------------


def _changes(one: _Run, other: _Run, first: str, second: str) -> Iterable[Change]:
    places = [
        (case, quantity)
        for case, backend, quantity in dict.fromkeys([*one.faults, *one.verdicts, *other.faults, *other.verdicts])
        if backend in (first, second)
    ]
    found: dict[Change, list[str]] = {}
    for case, quantity in dict.fromkeys(places):
        before, after = (case, first, quantity), (case, second, quantity)
        states, when = (one.state(before), other.state(after)), (one.condition(before), other.condition(after))
        change = _kind(states, one.faults.get(before, {}).keys(), other.faults.get(after, {}).keys(), when)
        if change:
            when = one.condition(before), other.condition(after)
            alike = Change(
                change, case, kind_of(second or first), (), (_version(first), _version(second)), states, when
            )
            found.setdefault(alike, []).append(quantity)
    for alike, quantities in found.items():
        yield dataclasses.replace(alike, quantities=tuple(quantities))


def _kind(states: tuple[str, str], old: Set[str], new: Set[str], when: tuple[str, str]) -> str:
    right = (AGREES, NOT_RUN)
    before, after = states
    if old and new and bool(new - old) != bool(old - new):  # a sweep finds several faults in one quantity
        return NEW if new - old else GONE
    if after not in right:
        return NEW if before in right else DIFFERENT if before != after or when[0] != when[1] else ""
    if before in right:
        return ""
    return GONE if after == AGREES else NOT_RUN


def _versions(one: _Run, other: _Run, pairs: Iterable[tuple[str, str]]) -> Iterable[str]:
    """Say per framework what differs: its own version, and those of what it ran with."""
    lines: dict[str, list[str]] = {}
    for first, second in pairs:
        framework = kind_of(second or first).partition("/")[0]
        if first and second:
            words = _words(one.backends[first]), _words(other.backends[second])
            for key in dict.fromkeys([*words[0], *words[1]]):
                old, new = (run.get(key, "?") for run in words)
                if old != new:
                    name = "" if key == "version" else f"{key} "
                    lines.setdefault(framework, []).append(f"{name}{old} -> {new}")
        else:
            which = (
                f"{_version(first)} in the first run alone" if first else f"{_version(second)} in the second run alone"
            )
            lines.setdefault(framework, []).append(which)
    for framework, said in lines.items():
        yield f"{framework}: {', '.join(dict.fromkeys(said))}"


def _words(versions: str) -> Mapping[str, str]:
    return dict(word.split("=", 1) for word in versions.split() if "=" in word)
