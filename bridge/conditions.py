"""When does it strike? The simplest statement on a case's fields that separates failing cases from passing ones.

A statement is a conjunction of clauses, each true of every failing case. Among all of them the one is chosen that
leaves the fewest passing cases inside, where every value that a clause names must earn its place: by shutting out two
in a hundred of the passing cases more, and three at least. So what fits by chance stays out.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_CLAUSES = 4
_CANDIDATES = 14  # clauses that are combined; the most telling ones
Mask = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Condition:
    """A statement and how well it separates.

    Attributes
    ----------
    text : the statement, or ``always``.
    failing : failing cases; it is true of all of them.
    inside, passing : passing cases of which it is true, and all passing cases.
    """

    text: str
    failing: int
    inside: int
    passing: int

    @property
    def separates(self) -> str:
        """How many of each it separates."""
        return f"{self.failing} of {self.failing} failing, {self.inside} of {self.passing} passing cases"


def separate(failing: Sequence[Mapping[str, Any]], passing: Sequence[Mapping[str, Any]]) -> Condition:
    """Find the statement.

    Parameters
    ----------
    failing, passing : the features of each case (:attr:`bridge.space.Sample.features`); at least one failing.
    """
    clauses = _clauses(failing, passing)
    everything = np.ones(len(passing), bool)
    telling = sorted(clauses, key=lambda name: (int(clauses[name].sum()), list(clauses).index(name)))[:_CANDIDATES]
    kept = [name for name in clauses if name in telling]  # in the order of the fields
    price = max(3, len(passing) // 50)
    best: tuple[int, tuple[str, ...]] = (len(passing), ())
    for count in range(1, MAX_CLAUSES + 1):
        for names in itertools.combinations(kept, count):
            inside = int(np.logical_and.reduce([clauses[name] for name in names], initial=True).sum())
            cost = inside + price * sum(name.count(",") + 1 for name in names)
            if cost < best[0]:
                best = (cost, names)
    inside = int(np.logical_and.reduce([everything, *(clauses[name] for name in best[1])]).sum())
    return Condition(" and ".join(best[1]) or "always", len(failing), inside, len(passing))


def _clauses(failing: Sequence[Mapping[str, Any]], passing: Sequence[Mapping[str, Any]]) -> dict[str, Mask]:
    """Clauses true of every failing case and not of every passing one, with the passing cases they are true of."""
    found: dict[str, Mask] = {}
    for field in failing[0]:
        mine, theirs = [case[field] for case in failing], [case[field] for case in passing]
        for text, test in _statements(field, mine):
            inside = np.array([test(value) for value in theirs], bool)
            if len(inside) and not inside.all():
                found[text] = inside
    return found


def _statements(field: str, values: list[Any]) -> list[tuple[str, Any]]:
    """Statements on one field that hold for all its values."""
    if field == "requested":
        return _requests(values)
    first = values[0]
    if isinstance(first, bool):
        same = all(value == first for value in values)
        return [(field if first else f"not {field}", lambda value: value == first)] if same else []
    if isinstance(first, int):
        low, high = min(values), max(values)
        if low == high:
            return [(f"{field} == {low}", lambda value: value == low)]
        return [
            (f"{field} >= {low}", lambda value: value >= low),
            (f"{field} <= {high}", lambda value: value <= high),
        ]
    known = list(dict.fromkeys(sorted(values)))
    text = f"{field} == {known[0]}" if len(known) == 1 else f"{field} in ({', '.join(known)})"
    return [(text if known != [""] else f"no {field}", lambda value: value in known)]


def _requests(values: list[str]) -> list[tuple[str, Any]]:
    found = []
    for name in ("params", "x", "h0", "c0"):
        inside = {name in value.split() for value in values}
        if len(inside) == 1:
            wanted = inside.pop()
            text = f"{name} requested" if wanted else f"{name} not requested"
            found.append((text, lambda value, name=name, wanted=wanted: (name in value.split()) == wanted))
    return found
