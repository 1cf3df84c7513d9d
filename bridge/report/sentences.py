"""What the tables say, in sentences; the terminal and the HTML report write the same ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bridge.diagnosis import Evidence, beside, how_well
from bridge.verdicts import SHORT

if TYPE_CHECKING:
    from typing import Any

    import pandas as pd


@dataclasses.dataclass(frozen=True)
class Statement:
    """Findings of one kind, over the backends and cases that share it.

    Attributes
    ----------
    backends, quantities, cases : where it was seen.
    places : the (case, backend, quantity) triples of that.
    clause : what is wrong and when.
    evidence : how well the fault matches, and on which cases.
    verified : what avoids it, and for whom; empty for all.
    notes : further remarks.
    """

    backends: tuple[str, ...]
    quantities: tuple[str, ...]
    cases: tuple[str, ...]
    places: frozenset[tuple[str, str, str]]
    clause: str
    evidence: str
    verified: tuple[tuple[str, tuple[str, ...]], ...]
    notes: tuple[str, ...]


def statements(findings: pd.DataFrame) -> list[Statement]:
    """Group findings that differ only in backend, case and numbers; ``findings`` is the table of that name."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in findings.itertuples(index=False):
        groups.setdefault((row.backend.partition("-")[0], row.clause), []).append(row)
    return [_statement(clause, members) for (_, clause), members in groups.items()]


def _statement(clause: str, members: Sequence[Any]) -> Statement:
    import pandas as pd

    backends = tuple(dict.fromkeys(row.backend for row in members))
    cases = tuple(dict.fromkeys(row.case for row in members))
    evidence = how_well(
        [Evidence(row.fault_residual, None if pd.isna(row.steps) else int(row.steps), row.closest) for row in members]
    )
    verified: dict[str, list[str]] = {}
    notes: dict[str, list[str]] = {}
    for row in members:
        for line in _listed(row.workarounds):
            verified.setdefault(line, []).append(row.backend)
        if note := beside(_listed(row.others)):
            notes.setdefault(note, []).append(row.case)
    return Statement(
        backends,
        tuple(dict.fromkeys(name for row in members for name in row.quantities.split())),
        cases,
        frozenset((row.case, row.backend, name) for row in members for name in row.quantities.split()),
        clause,
        "; ".join(filter(None, [evidence, f"on {', '.join(cases)}"])),
        tuple((line, () if len(having) == len(members) else tuple(having)) for line, having in verified.items()),
        tuple(f"on {','.join(dict.fromkeys(having))} {note}" for note, having in notes.items()),
    )


def reasons(summary: pd.DataFrame) -> list[tuple[str, str, str]]:
    """List the reasons of one case's summary as (verdict, whose, reason), each reason once."""
    owners: dict[tuple[str, str], dict[str, list[str]]] = {}
    size = summary["backend"].value_counts().to_dict()
    for row in summary[summary["reason"] != ""].itertuples(index=False):
        owners.setdefault((row.verdict, row.reason), {}).setdefault(row.backend, []).append(row.quantity)
    found = []
    for (verdict, reason), having in owners.items():
        alike: dict[str, list[str]] = {}
        for backend, quantities in having.items():
            every = len(quantities) == size[backend] > 2
            what = "" if every else " ".join(SHORT[name] for name in quantities)
            alike.setdefault(what, []).append(backend)
        who = "; ".join(f"{abbreviated(names)} {what}".rstrip() for what, names in alike.items())
        found.append((verdict, who, reason))
    return found


def abbreviated(names: Sequence[str]) -> str:
    """Write ``line/a, line/b`` as ``line/{a, b}``."""
    by_line: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        line, _, variant = name.partition("/")
        by_line.setdefault(line, []).append(variant)
    return ", ".join(
        f"{line}/{found[0]}" if len(found) == 1 else f"{line}/{{{', '.join(found)}}}" for line, found in by_line.items()
    )


def counted(names: Sequence[str]) -> str:
    """Write how many variants of each line there are."""
    lines = [name.partition("/")[0] for name in dict.fromkeys(names)]
    each = [f"{lines.count(line)} of {line}" for line in dict.fromkeys(lines)]
    return ", ".join(each).replace(" of ", " variants of ", 1)


def _listed(text: str) -> list[str]:
    return text.split(" | ") if text else []
