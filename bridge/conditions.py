"""When does it strike? The simplest statement on a case's fields that separates failing cases from passing ones.

A statement is a conjunction of clauses, each true of (nearly) every failing case: one in fifty may have failed for
another reason. Among all of them the one is chosen that leaves the fewest passing cases inside and failing ones
outside, where every value that a clause names must earn its place: by shutting out two in a hundred of the passing
cases more, and three at least. So what fits by chance stays out.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
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
    covered, failing : failing cases of which it is true, and all failing cases.
    inside, passing : passing cases of which it is true, and all passing cases.
    """

    text: str
    covered: int
    failing: int
    inside: int
    passing: int

    @property
    def separates(self) -> str:
        """How many of each it separates."""
        return f"{self.covered} of {self.failing} failing, {self.inside} of {self.passing} passing cases"


def separate(failing: Sequence[Mapping[str, Any]], passing: Sequence[Mapping[str, Any]]) -> Condition:
    """Find the statement.

    Parameters
    ----------
    failing, passing : the features of each case (:attr:`bridge.space.Sample.features`); at least one failing.
    """
    clauses = _clauses(failing, passing)
    telling = sorted(clauses, key=lambda name: (int(clauses[name][1].sum()), list(clauses).index(name)))[:_CANDIDATES]
    kept = [name for name in clauses if name in telling]  # in the order of the fields
    price = max(3, len(passing) // 50)
    best: tuple[int, tuple[str, ...]] = (len(passing), ())
    for count in range(1, MAX_CLAUSES + 1):
        for names in itertools.combinations(kept, count):
            covered, inside = _counts([clauses[name] for name in names])
            values = sum(name.count(",") + 1 for name in names)
            cost = inside + price * (values + len(failing) - covered)
            if cost < best[0]:
                best = (cost, names)
    names = best[1]
    if not names:
        return Condition("always", len(failing), len(failing), len(passing), len(passing))
    covered, inside = _counts([clauses[name] for name in names])
    return Condition(" and ".join(names), covered, len(failing), inside, len(passing))


def _counts(masks: Sequence[tuple[Mask, Mask]]) -> tuple[int, int]:
    """How many failing and passing cases all clauses are true of."""
    failing, passing = (np.logical_and.reduce(pair) for pair in zip(*masks, strict=True))
    return int(failing.sum()), int(passing.sum())


def _clauses(
    failing: Sequence[Mapping[str, Any]], passing: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[Mask, Mask]]:
    """Clauses true of nearly every failing case and not of every passing one, with the cases they are true of."""
    found: dict[str, tuple[Mask, Mask]] = {}
    for field in failing[0]:
        mine, theirs = [case[field] for case in failing], [case[field] for case in passing]
        for text, test in _statements(field, mine):
            covered, inside = (np.array([test(value) for value in values], bool) for values in (mine, theirs))
            if len(inside) and not inside.all() and (~covered).sum() <= len(mine) // 50:
                found[text] = (covered, inside)
    return found


def _statements(field: str, values: list[Any]) -> list[tuple[str, Any]]:
    """Statements on one field that hold for nearly all its values."""
    if field == "requested":
        return _requests(values)
    counted = Counter(values)
    if isinstance(values[0], bool):
        most = counted.most_common(1)[0][0]
        return [(field if most else f"not {field}", lambda value: value == most)]
    if isinstance(values[0], int):
        ordered = sorted(values)
        odd = len(values) // 50
        found: list[tuple[str, Any]] = []
        for low in dict.fromkeys((ordered[0], ordered[odd])):
            found.append((f"{field} >= {low}", lambda value, low=low: value >= low))
        for high in dict.fromkeys((ordered[-1], ordered[-1 - odd])):
            found.append((f"{field} <= {high}", lambda value, high=high: value <= high))
        if ordered[0] == ordered[-1]:
            return [(f"{field} == {ordered[0]}", lambda value: value == ordered[0])]
        return found
    found = []
    for least in dict.fromkeys((0, len(values) // 50)):
        known = sorted(value for value, count in counted.items() if count > least)
        text = f"{field} == {known[0]}" if len(known) == 1 else f"{field} in ({', '.join(known)})"
        found.append((text if known != [""] else f"no {field}", lambda value, known=known: value in known))
    return found


def _requests(values: list[str]) -> list[tuple[str, Any]]:
    found = []
    for name in ("params", "x", "h0", "c0"):
        wanted = 2 * sum(name in value.split() for value in values) > len(values)
        text = f"{name} requested" if wanted else f"{name} not requested"
        found.append((text, lambda value, name=name, wanted=wanted: (name in value.split()) == wanted))
    return found
