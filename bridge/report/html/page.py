"""The page: what each section says, computed from the saved tables; ``report.html.jinja`` is its form."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import bridge
from bridge import investigation
from bridge.backends.flux import Name
from bridge.errors import BadInputError
from bridge.report import tables
from bridge.report.html import charts
from bridge.report.lengths import by_length
from bridge.report.saved import Manifest, Saved
from bridge.report.sentences import Statement, abbreviated, counted, reasons, statements
from bridge.verdicts import AGREES, NO_VALUES, SHORT, VERDICTS, WRONG

SYMBOLS = dict(zip(VERDICTS, "✓✗∞≠-∅↯⏱", strict=True)) | {"right": "✓", "wrong": "✗", "nothing": "○", "error": "↯"}
"""A sign for every verdict, so that colour is never the only one."""

SCRIPTS = {
    ".py": "the script that shows it without gradbridge",
    ".jl": "the script that shows it without gradbridge",
    ".md": "a report for the framework's maintainers",
}
"""What a sweep writes of a finding, by suffix."""

MOST_ROWS = 60
"""Backends that have a row each in a matrix."""

LIBRARY = "vega.min.js"
"""Written when the package is built; see ``hatch_build.py``."""

MOST_LENGTHS = 12
"""Sequence lengths shown beside each other."""

_SUMMARY = (
    "case", "backend", "quantity", "verdict", "max_abs_err", "max_rel_err", "worst_seq_len", "worst_timestep", "fault",
    "reason",
)  # fmt: skip
_TIMESTEPS = ("case", "backend", "quantity", "seq_len", "loss_step", "timestep", "verdict")
_FINDINGS = (
    "case", "backend", "quantities", "fault", "fault_residual", "steps", "closest", "workarounds", "others", "clause",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cell:
    """A verdict in a matrix.

    Attributes
    ----------
    verdict : the word; it stands beside its sign.
    error, place : the worst error and where, or empty.
    sort : what the column is sorted by.
    finding : number of the finding that names it, or None.
    """

    verdict: str
    error: str
    place: str
    sort: float
    finding: int | None

    @property
    def symbol(self) -> str:
        """The verdict's sign."""
        return SYMBOLS[self.verdict]

    @property
    def wrong(self) -> bool:
        """Whether the value cannot be relied on."""
        return self.verdict in WRONG


@dataclasses.dataclass(frozen=True)
class Row:
    """The verdicts of a backend, or of several alike, by quantity."""

    backends: tuple[str, ...]
    cells: dict[str, Cell]

    @property
    def wrong(self) -> bool:
        """Whether anything is wrong."""
        return any(cell.wrong for cell in self.cells.values())


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A case's verdicts."""

    case: str
    network: str
    source: str
    quantities: tuple[str, ...]
    rows: tuple[Row, ...]
    reasons: tuple[tuple[str, str, str], ...]

    @property
    def wrong(self) -> int:
        """How many backends are wrong about something."""
        return sum(len(row.backends) for row in self.rows if row.wrong)


def render(saved: Saved) -> str:
    """Write the page of a run.

    Raises
    ------
    BadInputError
        When a table is broken, naming the file, or gradbridge runs from a source tree that was never installed.
    """
    environment = Environment(
        loader=PackageLoader("bridge.report.html", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    sections = _sweep(saved) if saved.manifest.kind == "sweep" else _compare(saved)
    return environment.get_template("report.html.jinja").render(
        run=saved.manifest,
        cases={} if isinstance(saved.manifest.cases, int) else saved.manifest.cases,
        command=shlex.join(saved.manifest.command),
        origins=_origins(saved),
        short=SHORT,
        symbols=SYMBOLS,
        abbreviated=abbreviated,
        counted=counted,
        suffixes=SCRIPTS,
        style=Markup(_text("report.css")),
        script=Markup(_text("report.js")),
        library=Markup(_library()),
        **(_NOTHING | sections),
    )


_NOTHING: dict[str, Any] = {
    "statements": [], "found": [], "columns": [], "matrices": [], "counts": {}, "lengths": [], "flux": [], "advice": [],
    "relations": [], "runs": {}, "matrix": None, "data": {"steps": [], "maps": []}, "omitted": {},
}  # fmt: skip


def _library() -> str:
    try:
        return _text(LIBRARY)
    except FileNotFoundError:
        raise BadInputError(LIBRARY, "", "the chart library, which `pip install .` puts in place", "no file") from None


def _text(name: str) -> str:
    return resources.files("bridge.report.html").joinpath(name).read_text(encoding="utf-8")


# -- a comparison ------------------------------------------------------------------------------------------------


def _compare(saved: Saved) -> dict[str, Any]:
    summary = saved.table("summary", _SUMMARY)
    gradients = saved.table("gradients", charts.STEPS)
    said = statements(saved.table("findings", _FINDINGS))
    steps, steps_omitted = charts.steps(saved.table("timesteps", _TIMESTEPS), gradients)
    maps, maps_omitted = charts.maps(saved)
    views = [(case, by_length(rows)) for case, rows in gradients.groupby("case", sort=False)]
    sections = {
        "statements": [(one, _meanings(one, saved.manifest), _again(one, saved.manifest)) for one in said],
        "matrices": [
            _matrix(str(case), rows, said, saved.manifest) for case, rows in summary.groupby("case", sort=False)
        ],
        "counts": {verdict: n for verdict in VERDICTS if (n := int((summary["verdict"] == verdict).sum()))},
        "lengths": [(case, _columns(found), found) for case, found in views if found],
        "relations": _relations(saved),
        "matrix": saved.table("matrix") if saved.has("matrix") else None,
        "data": {"steps": steps, "maps": maps},
        "omitted": {"steps": steps_omitted, "maps": maps_omitted},
    }
    return sections | (_flux(saved) if saved.manifest.kind == "flux" else {})


def _meanings(one: Statement, run: Manifest) -> dict[str, str]:
    """What each variant of a statement does, in a line, where the run says so."""
    known = {name.partition("/")[2]: run.backend(name).get("about", "") for name in one.backends}
    return {variant: about for variant, about in known.items() if about}


def _again(one: Statement, run: Manifest) -> str:
    """Return the command that shows a finding alone, where its case is a shipped one."""
    pairs = {(case, backend) for case, backend, _ in one.places}
    case, backend = min(pairs, key=lambda pair: (one.cases.index(pair[0]), one.backends.index(pair[1])))
    known = run.case(case).get("digest")
    if case not in bridge.shipped_cases() or bridge.load_case(case).digest() != known:
        return ""
    live = [] if run.backend(backend).get("source") != "recorded" else ["--no-live"]
    return shlex.join(["gradbridge", "compare", case, "--backend", backend, *live])


def _matrix(case: str, summary: pd.DataFrame, said: Sequence[Statement], run: Manifest) -> Matrix:
    numbers = {place: number for number, one in enumerate(said, 1) for place in one.places if place[0] == case}
    cells: dict[str, dict[str, Cell]] = {}
    for row in summary.itertuples(index=False):
        number = numbers.get((case, row.backend, row.quantity))
        cells.setdefault(row.backend, {})[row.quantity] = _cell(row, number)
    known = run.case(case)
    return Matrix(
        case,
        str(known.get("network", "")),
        str(known.get("source", "")),
        tuple(dict.fromkeys(quantity for own in cells.values() for quantity in own)),
        tuple(_rows(cells)),
        tuple(reasons(summary)),
    )


def _rows(cells: dict[str, dict[str, Cell]]) -> Iterator[Row]:
    """Give each backend a row; those without any value share one, and in a long matrix those that read alike."""
    together: dict[Any, list[str]] = {}
    for backend, own in cells.items():
        alike = tuple((cell.verdict, cell.finding, cell.error if cell.wrong else "") for cell in own.values())
        mute = all(cell.verdict in NO_VALUES for cell in own.values())
        together.setdefault(alike if mute or len(cells) > MOST_ROWS else backend, []).append(backend)
    for backends in together.values():
        members = [cells[backend] for backend in backends]
        worst = {name: max((own[name] for own in members), key=lambda cell: cell.sort) for name in members[0]}
        yield Row(tuple(backends), worst)


def _cell(row: Any, finding: int | None) -> Cell:
    if pd.isna(row.max_abs_err):
        nothing = row.verdict in WRONG and row.reason.startswith("nothing")
        return Cell(row.verdict, "nothing" if nothing else "", "", -1.0 - VERDICTS.index(row.verdict), finding)
    error = f"{row.max_abs_err:.2g}"
    if row.verdict != AGREES:
        error += f", rel {row.max_rel_err:.2g}"
    step = "" if pd.isna(row.worst_timestep) else f", step {row.worst_timestep:.0f}"
    return Cell(row.verdict, error, f"length {row.worst_seq_len:.0f}{step}", row.max_abs_err, finding)


def _columns(views: Iterable[Any]) -> tuple[int, ...]:
    """Choose the lengths to show: all, or some from the shortest to the longest."""
    lengths = sorted({length for view in views for length in view.lengths})
    if len(lengths) <= MOST_LENGTHS:
        return tuple(lengths)
    last = len(lengths) - 1
    return tuple(lengths[round(i * last / (MOST_LENGTHS - 1))] for i in range(MOST_LENGTHS))


def _relations(saved: Saved) -> list[Any]:
    from bridge.relations import COLUMNS

    if not saved.has("relations"):
        return []
    return list(saved.table("relations", COLUMNS).itertuples(index=False))


def _flux(saved: Saved) -> dict[str, Any]:
    cells = investigation.read(saved.table("flux", investigation.COLUMNS))
    versions = list(dict.fromkeys(cell.version for cell in cells))
    cases = []
    for case in dict.fromkeys(cell.case for cell in cells):
        own = [cell for cell in cells if cell.case == case]
        truth = next((cell.truth for cell in own if cell.truth is not None), None)
        rows = [(_axes(name), [found.get(version) for version in versions]) for name, found in investigation.rows(own)]
        cases.append((case, truth, versions, rows))
    return {"flux": cases, "advice": investigation.advice(cells)}


def _axes(name: Name) -> tuple[str, str, str, str]:
    """Model, application, API and what differs from the default."""
    words = investigation.label(name).split(" ")
    return words[0], words[1], words[2], " ".join(words[3:])


# -- a sweep -----------------------------------------------------------------------------------------------------


def _sweep(saved: Saved) -> dict[str, Any]:
    found = saved.table("findings")
    if "finding" not in found:
        raise BadInputError(str(saved.folder / "findings.csv"), "finding", "that column", f"only {', '.join(found)}")
    rows = [(row, _scripts(saved, row)) for row in found.astype(object).where(found.notna(), "").to_dict("records")]
    columns = [name for name in found if name not in ("sentence", "min_case", "reproducer")]
    runs: dict[str, dict[str, int]] = {}
    if saved.has("cases"):
        for backend, verdict in saved.table("cases", ("backend", "verdict")).itertuples(index=False):
            own = runs.setdefault(backend, {})
            own[verdict] = own.get(verdict, 0) + 1
    total = [verdict for own in runs.values() for verdict, n in own.items() for _ in range(n)]
    counts = {verdict: total.count(verdict) for verdict in (*VERDICTS, *total) if verdict in total}
    return {"found": rows, "columns": columns, "counts": counts, "runs": runs}


def _scripts(saved: Saved, row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and text of what the sweep wrote to show a finding: the script, and the report to go with it."""
    paths = [path for path in (saved.folder / "reproducers").glob("*") if path.stem == row["finding"]]
    return [
        (path.name, path.read_text(encoding="utf-8", errors="replace"))
        for suffix in SCRIPTS
        for path in paths
        if path.suffix == suffix
    ]


@dataclasses.dataclass(frozen=True)
class Origin:
    """Backends whose answers come from the same place."""

    backends: list[str]
    source: str
    state: str
    about: str


def _origins(saved: Saved) -> list[Origin]:
    if not saved.has("backends"):
        return []
    found: dict[tuple[str, ...], Origin] = {}
    for row in saved.table("backends", tables.BACKENDS).itertuples(index=False):
        switches = (f"{name}={value}" for name, value in saved.manifest.switches.get(row.backend, {}).items())
        about = " ".join(filter(None, [row.versions, *switches, row.reason]))
        line = row.backend.partition("/")[0]
        key = (line, row.source, row.state, about)
        found.setdefault(key, Origin([], row.source, row.state, about)).backends.append(row.backend)
    return list(found.values())
