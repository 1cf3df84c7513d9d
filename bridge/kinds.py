"""From a sweep's rows to its findings: one per backend and fault, with the condition under which it strikes."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bridge.answers import CRASHED, TIMED_OUT, UNAVAILABLE, UNSUPPORTED
from bridge.batches import ACCEPTED, OVERWRITTEN, TOO_MANY
from bridge.case import QUANTITY_ORDER
from bridge.conditions import Condition, separate
from bridge.faults import CATALOGUE, alike
from bridge.space import sample
from bridge.verdicts import DISAGREES, NOT_FINITE, NOT_REPEATABLE

Row = Mapping[str, Any]
"""A case's row, as :func:`bridge.batches.run_batch` returns it."""


_WORDS = {
    ACCEPTED: "an array of a wrong shape is accepted without a word",
    OVERWRITTEN: "the framework writes into an array that it was handed",
}
_OTHERWISE = {
    NOT_REPEATABLE: "two identical calls give different bits: memory is probably read before it is written",
    NOT_FINITE: "NaN or infinity from finite input, where the true value is finite",
    DISAGREES: "wrong by more than rounding explains, and no named fault gives these values",
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of disagreement of one backend.

    Attributes
    ----------
    backend, verdict, fault : what it is.
    quantities : all that it was seen in.
    condition : when it strikes.
    indices : the cases that show it, smallest first; those that show another as well come last.
    worst_rel_err : over all of them; NaN where there were no values to compare.
    """

    backend: str
    verdict: str
    fault: str
    quantities: tuple[str, ...]
    condition: Condition
    indices: tuple[int, ...]
    worst_rel_err: float

    @property
    def title(self) -> str:
        """A headline."""
        where = f", {' '.join(self.quantities)}" if self.quantities else ""
        return f"{self.backend}: {self.fault}{where}"

    @property
    def what(self) -> str:
        """What is wrong, as a sentence."""
        return describe(self.verdict, self.fault)

    @property
    def when(self) -> str:
        """When it strikes, as a sentence."""
        return f"Seen when: {self.condition.text} ({self.condition.separates})."

    @property
    def sentence(self) -> str:
        """The finding in a sentence."""
        return f"{self.title}. {self.what} {self.when}"

    @property
    def name(self) -> str:
        """A name fit for files and the command line."""
        return slug(self.backend, self.fault, "" if self.verdict == DISAGREES else self.verdict)


def describe(verdict: str, fault: str) -> str:
    """Say in a sentence what a verdict and fault mean."""
    parts = [CATALOGUE[name].sentence for name in fault.split("+") if name in CATALOGUE]
    text = " and ".join(parts) or _WORDS.get(fault) or _OTHERWISE.get(verdict) or fault
    return f"{text[0].upper()}{text[1:]}."


def slug(*words: str) -> str:
    """Join words to a name fit for files and the command line."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(words)).strip("-.")[:90].rstrip("-.")


class Stops:
    """Watches rows in the order of their indices, and stops backends.

    A backend is asked no more after ten crashes in a row, or at once where it cannot start.

    Attributes
    ----------
    reasons : backend -> why it was stopped.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._streaks: dict[str, int] = {}

    def feed(self, row: Row) -> Row:
        """Take the next row and return it without what stopped backends were still asked, in the order of their names.

        Which backend answers first is chance, and must not show.
        """
        kept = {backend: result for backend, result in sorted(row["results"].items()) if backend not in self.reasons}
        for backend, result in kept.items():
            ended = result["verdict"] in (CRASHED, TIMED_OUT)
            self._streaks[backend] = self._streaks.get(backend, 0) + 1 if ended else 0
            if result["verdict"] == UNAVAILABLE:
                self.reasons[backend] = result["reason"]
            elif self._streaks[backend] == TOO_MANY:
                self.reasons[backend] = f"{TOO_MANY} cases in a row ended so: {result['reason']}"
        return {**row, "results": kept}


def settle(rows: Sequence[Row], seed: int) -> list[Row]:
    """Give a fault that a case cannot tell from another the name that more of the backend's cases have.

    Where only the last step has a head gradient, say, several faults are the same; each would be a finding of its own.
    """
    counts = Counter(
        (backend, symptom["fault"])
        for row in rows
        for backend, result in row["results"].items()
        for symptom in result["symptoms"]
        if symptom["detailed"]  # a catalogued fault, computed and compared
    )
    return [_settled(row, seed, counts) for row in rows]


def _settled(row: Row, seed: int, counts: Mapping[tuple[str, str], int]) -> Row:
    task = sample(seed, row["index"]).task
    same = functools.cache(functools.partial(alike, task))  # many backends show the same

    def settled(backend: str, symptom: Mapping[str, Any]) -> Mapping[str, Any]:
        count = counts.get((backend, symptom["fault"]), 0)
        usual = sorted((-n, fault) for (one, fault), n in counts.items() if one == backend and n > count > 0)
        name = next((fault for _, fault in usual if same(symptom["detailed"], fault)), None)
        return symptom if name is None else {**symptom, "fault": name, "instead": symptom["fault"]}

    results = {
        backend: {**result, "symptoms": [settled(backend, symptom) for symptom in result["symptoms"]]}
        for backend, result in row["results"].items()
    }
    return {**row, "results": results}


def group(rows: Sequence[Row]) -> list[Kind]:
    """Group what was wrong into kinds, by backend, verdict and fault."""
    members: dict[tuple[str, str, str], list[tuple[Row, Mapping[str, Any]]]] = {}
    for row in rows:
        for backend, result in row["results"].items():
            for symptom in result["symptoms"]:
                members.setdefault((backend, symptom["verdict"], symptom["fault"]), []).append((row, symptom))
    return [_kind(key, found, rows) for key, found in sorted(members.items())]


def _kind(key: tuple[str, str, str], found: list[tuple[Row, Mapping[str, Any]]], rows: Sequence[Row]) -> Kind:
    backend = key[0]
    failing = {row["index"]: row for row, _ in found}
    ambiguous = {row["index"] for row, symptom in found if "instead" in symptom}
    passing = [
        row["features"]
        for row in rows
        if (result := row["results"].get(backend)) is not None
        and not result["symptoms"]
        and result["verdict"] not in (UNSUPPORTED, UNAVAILABLE)
    ]
    shown = {name for _, symptom in found for name in symptom["quantities"]}
    quantities = tuple(name for name in QUANTITY_ORDER if name in shown)
    errors = [symptom["rel_err"] for _, symptom in found if not math.isnan(symptom["rel_err"])]
    smallest = sorted(failing, key=lambda index: (index in ambiguous, *_size(failing[index]["features"]), index))
    condition = separate([row["features"] for row in failing.values()], passing)
    return Kind(*key, quantities, condition, tuple(smallest), max(errors, default=math.nan))


def _size(features: Mapping[str, Any]) -> tuple[int, int]:
    """How large a case is: cells, then numbers."""
    cells = features["layers"] * (1 + features["bidirectional"])
    numbers = features["seq_len"] * features["batch"] * (features["input_size"] + cells * features["hidden_size"])
    return cells, numbers


def rows_for_table(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One flat row per case and backend, for ``cases.csv``."""
    return [
        {
            "case": row["index"],
            "digest": row["digest"][:16],
            **row["features"],
            "backend": backend,
            "verdict": result["verdict"],
            "fault": " | ".join(symptom["fault"] for symptom in result["symptoms"]),
            "quantities": " | ".join(" ".join(symptom["quantities"]) for symptom in result["symptoms"]),
            "rel_err": max(
                (symptom["rel_err"] for symptom in result["symptoms"] if not math.isnan(symptom["rel_err"])),
                default=math.nan,
            ),
            "reason": result["reason"],
        }
        for row in rows
        for backend, result in row["results"].items()
    ]
