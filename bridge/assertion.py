"""What the pytest plugin says: whether a comparison fails a test, in which words, and its rows of the CSV."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from bridge.backends.callables import as_backend
from bridge.case import QUANTITY_ORDER, Case, atomic, load_case
from bridge.errors import BadInputError
from bridge.faults import CATALOGUE, UNEXPLAINED, Match
from bridge.report.tables import GRADIENTS, INDEX
from bridge.verdicts import AGREES, NOT_REPEATABLE, WRONG

if TYPE_CHECKING:
    from bridge.comparison import Comparison

COLUMNS = ("test", "comparison", *GRADIENTS, "fault", "reason")
"""Columns of the session's CSV: those of ``gradients.csv`` and what they belong to."""


def checked(
    case: Case | str | os.PathLike[str], quantities: Iterable[str] | None, known_faults: Iterable[str]
) -> tuple[Case, tuple[str, ...], tuple[str, ...]]:
    """Load the case and check the names that a test gives.

    Raises
    ------
    BadInputError
        For one that there is not.
    """
    case = case if isinstance(case, Case) else load_case(case)
    where = "assert_gradients_agree"
    asked = case.quantities if quantities is None else _names(where, "quantities", quantities)
    for name in asked:
        if name not in case.quantities:
            expected = f"names out of {', '.join(case.quantities)}, which {case.name} asks for"
            raise BadInputError(where, "quantities", expected, repr(name))
    if not asked:
        raise BadInputError(where, "quantities", "at least one of " + ", ".join(QUANTITY_ORDER), "none")
    known = _names(where, "known_faults", known_faults)
    for name in known:
        for part in name.split(" + "):
            if part.partition(" (")[0] not in (*CATALOGUE, UNEXPLAINED):
                raise BadInputError(where, "known_faults", "names that `gradbridge faults` lists", repr(part))
    return case, asked, known


def _names(where: str, key: str, given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise BadInputError(where, key, "several names (a list)", repr(given))
    return tuple(given)


def steady(backend: Any) -> Any:
    """Make a backend of a callable that is asked for the very case of the test, and for no variation of it."""
    if isinstance(backend, str) or hasattr(backend, "open"):
        return backend
    return dataclasses.replace(as_backend(backend), varies=False)


# -- the complaint -----------------------------------------------------------------------------------------------


def complaint(comparison: Comparison, quantities: Sequence[str], known: Sequence[str], shown: int) -> str:
    """Say what fails the test; empty where nothing does.

    Parameters
    ----------
    comparison : of one case.
    quantities : those that must agree.
    known : names of faults that are accepted, and must be seen.
    shown : how many wrong elements to show.
    """
    summary = comparison.summary
    bad = summary[(summary["verdict"] != AGREES) & summary["quantity"].isin(quantities)]
    accepted: set[tuple[str, str]] = set()
    gone = list(known)
    for finding in comparison.findings:
        names = [name for name in known if _covers(name, finding.match)]
        if names and set(finding.match.quantities) & set(quantities):
            accepted |= {(finding.backend, quantity) for quantity in finding.match.quantities}
            gone = [name for name in gone if name not in names]
    bad = bad.drop([row.Index for row in bad.itertuples() if (row.backend, row.quantity) in accepted])
    parts = [_of_backend(comparison, str(backend), rows, shown) for backend, rows in bad.groupby("backend", sort=False)]
    if gone:
        who = ", ".join(dict.fromkeys(map(str, summary["backend"])))
        parts.append(
            f"known fault{'s' * (len(gone) > 1)} {', '.join(gone)} not seen in {who} any more: "
            "take out of known_faults what has gone"
        )
    if not parts:
        return ""
    return "\n".join([f"gradients on {repr(comparison.cases[0]).strip('<>')}", *parts])


def _covers(name: str, match: Match) -> bool:
    """Whether a known name is this match's: the whole, the whole without details, or each part of a pair."""
    return name in (match.fault, " + ".join(match.kinds)) or (not match.kinds and name == UNEXPLAINED)


def _of_backend(comparison: Comparison, backend: str, rows: pd.DataFrame, shown: int) -> str:
    lines = [backend]
    for row in rows.itertuples():
        wrong = f", {row.n_disagree} of {row.n} elements" if row.verdict in WRONG else ""
        lines.append(f"  {row.quantity} {row.verdict}{wrong}: {row.reason}")
    lines += _elements(comparison, backend, list(rows["quantity"][rows["verdict"].isin(WRONG)]), shown)
    for finding in comparison.findings:
        if finding.backend == backend and set(finding.match.quantities) & set(rows["quantity"]):
            lines.append(f"  fault: {finding.match.fault}")
            lines.append(f"    {finding.sentence}")
    return "\n".join(lines)


def _elements(comparison: Comparison, backend: str, quantities: Sequence[str], shown: int) -> list[str]:
    """The first wrong elements as a table, time steps first."""
    table = comparison.gradients
    wrong = table[(table["backend"] == backend) & table["quantity"].isin(quantities) & table["verdict"].isin(WRONG)]
    if wrong.empty:
        return []
    first = wrong.head(shown)
    places = [name for name in ("seq_len", "loss_step", *INDEX) if first[name].notna().any()]
    header = ["quantity", *places, "value", "reference", "tolerance"]
    cells = [header]
    both = _both_values(comparison, backend)
    for row in first.to_dict("records"):
        value = both[_place(row)] if row["verdict"] == NOT_REPEATABLE else f"{row['value']:.9g}"
        indices = ["" if pd.isna(row[name]) else str(row[name]) for name in places]
        cells.append([row["quantity"], *indices, value, f"{row['reference']:.9g}", f"{row['tolerance']:.2g}"])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["    " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    if len(wrong) > shown:
        lines.append(f"    ... and {len(wrong) - shown} more")
    return lines


def _both_values(comparison: Comparison, backend: str) -> dict[str, str]:
    """What two identical calls gave, by place."""
    side = comparison.not_repeatable
    return {
        _place(row): f"{row['first']:.9g} | {row['second']:.9g}"
        for row in side[side["backend"] == backend].to_dict("records")
    }


def _place(row: dict[Any, Any]) -> str:
    return " ".join(str(row[name]) for name in ("quantity", "seq_len", "loss_step", *INDEX))


# -- the session's CSV -------------------------------------------------------------------------------------------


def rows(test: str, comparisons: Sequence[Comparison]) -> str:
    """One CSV row per element that a test compared, and one per quantity without values; no header."""
    return "".join(_text(test, number, comparison) for number, comparison in enumerate(comparisons))


def _text(test: str, number: int, comparison: Comparison) -> str:
    keys = ["case", "backend", "quantity"]
    elements, summary = comparison.gradients.astype(dict.fromkeys(keys, object)), comparison.summary
    whole = elements.merge(summary[[*keys, "fault", "reason"]], on=keys, how="left")
    having = set(elements[keys].drop_duplicates().itertuples(index=False, name=None))
    bare = summary.drop([row.Index for row in summary.itertuples() if (row.case, row.backend, row.quantity) in having])
    return "".join(
        frame.assign(test=test, comparison=number)
        .reindex(columns=COLUMNS)
        .to_csv(index=False, header=False, lineterminator="\n")
        for frame in (whole, bare[[*keys, "verdict", "reason"]])
    )


def write(path: str, texts: Iterable[str]) -> None:
    """Write the rows of all tests under one header, whole or not at all."""
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(",".join(COLUMNS) + "\n")
        file.writelines(texts)
