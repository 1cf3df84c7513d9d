"""Several versions side by side: which variant of which version shows which finding, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bridge.answers import UNSUPPORTED
from bridge.backends.registry import BackendName
from bridge.verdicts import AGREES, WRONG

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
"""A row of the summary."""

Place = tuple[str, str]
"""Case and quantity."""

FIXED = ("fault", "backend", "cases", "since", "until")
"""Columns of the table that every run has; a column per version follows."""

SHOWS, SHOWS_NOT, OTHERWISE, NOT_RUN = "shows", "does not show", "wrong otherwise", "not run"


def matrix(summary: pd.DataFrame, backends: Iterable[str]) -> pd.DataFrame:
    """One row per fault and backend variant without its version; a column per version, oldest first.

    Parameters
    ----------
    summary : the run's summary table.
    backends : the names of all backends of the run, in order.

    Returns
    -------
    DataFrame
        ``fault``, ``backend``, ``cases`` (where any backend of the framework shows the fault), ``since`` and ``until``
        (first and last version that shows it, or empty), and a column per version. A cell says what that version does
        on those cases, in the quantities that the fault strikes: ``shows``, ``does not show``, ``wrong otherwise``
        (another fault), ``unsupported``, ``not run`` (no values, or no such variant in that version); it is empty in
        the columns of other frameworks.
    """
    import pandas as pd

    names = [BackendName.parse(backend) for backend in backends]
    said: dict[tuple[str, str], dict[tuple[str, str], Row]] = {}
    for row in summary.to_dict("records"):
        name = BackendName.parse(row["backend"])
        said.setdefault((name.line, name.variant), {})[row["case"], row["quantity"]] = row
    columns, rows = [*FIXED], []
    for framework in dict.fromkeys(name.framework for name in names):
        own = [name for name in names if name.framework == framework]
        lines = list(dict.fromkeys(name.line for name in sorted(own, key=BackendName.age)))
        variants = dict.fromkeys(name.variant for name in own)
        columns += lines
        for fault, places in _faults(said[name.line, name.variant] for name in own if name[1:] in said).items():
            for variant in variants:
                cells = {line: _cell(fault, places, said.get((line, variant), {})) for line in lines}
                showing = [line for line, cell in cells.items() if cell == SHOWS]
                fixed = {
                    "fault": fault,
                    "backend": f"{framework}/{variant}",
                    "cases": " ".join(dict.fromkeys(case for case, _ in places)),
                    "since": showing[0] if showing else "",
                    "until": showing[-1] if showing else "",
                }
                rows.append(fixed | cells)
    return pd.DataFrame(rows, columns=columns).fillna("")


def _faults(backends: Iterable[Mapping[Place, Row]]) -> dict[str, list[Place]]:
    """Every fault, with where it is seen: the cases and quantities of all backends together."""
    found: dict[str, list[Place]] = {}
    for rows in backends:
        for place, row in rows.items():
            if isinstance(row["fault"], str):
                places = found.setdefault(row["fault"], [])
                if place not in places:
                    places.append(place)
    return found


def _cell(fault: str, places: Iterable[Place], said: Mapping[Place, Row]) -> str:
    rows = [said[place] for place in places if place in said]
    verdicts = {row["verdict"] for row in rows}
    if any(row["fault"] == fault for row in rows):
        return SHOWS
    if verdicts & set(WRONG):
        return OTHERWISE
    if AGREES in verdicts:
        return SHOWS_NOT
    return UNSUPPORTED if UNSUPPORTED in verdicts else NOT_RUN
