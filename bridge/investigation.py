"""``gradbridge flux``: which ways of applying a stateful model give the right gradient in which Flux."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bridge.answers import CRASHED, TIMED_OUT
from bridge.backends.flux import Name
from bridge.comparison import Comparison
from bridge.verdicts import AGREES, DISAGREES, NO_VALUES, NOT_REPEATABLE, SHORT, Judged, Outcome

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "case", "model", "application", "api", "requested", "reset", "state", "version", "source", "verdict", "wrong",
    "fault", "dweight_ih", "truth", "worst_rel_err", "reason",
)  # fmt: skip
RIGHT, WRONG, NOTHING, ERROR, NONE = "right", "wrong", "nothing", "error", "unsupported"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One variant of one version on one case.

    Attributes
    ----------
    verdict : ``right``, ``wrong``, ``nothing`` (no weight has a gradient), ``error``, ``unsupported``.
    wrong : the quantities that are wrong, with their error relative to the true gradient's norm.
    value, truth : dL/dW_ih where it is a single number, as in the seed question.
    """

    case: str
    backend: str
    name: Name
    version: str
    source: str
    verdict: str
    wrong: dict[str, float]
    value: float | None
    truth: float | None
    reason: str

    @property
    def text(self) -> str:
        """The cell of the terminal table."""
        if self.verdict == NONE:
            return "-"
        if self.verdict == ERROR:
            return self.reason.partition(":")[0][:13]
        if self.verdict in (RIGHT, NOTHING):
            return self.verdict
        worst = max(self.wrong, key=lambda quantity: self.wrong[quantity])
        first = "dweight_ih" if "dweight_ih" in self.wrong else worst
        size = self.wrong[first]
        by = "nothing" if np.isnan(size) else f"{size:.2g}" if size < 0.01 or size >= 10 else f"{size:.0%}"
        if first == "dweight_ih" and self.value is not None:
            by = f"{self.value:.6g}"
        more = f" +{len(self.wrong) - 1}" if len(self.wrong) > 1 else ""
        return f"{'' if first == 'dweight_ih' else SHORT[first] + ' '}{by}{more}"


@dataclasses.dataclass(frozen=True)
class Investigation:
    """The table of a run over Flux variants."""

    comparison: Comparison

    @cached_property
    def cells(self) -> list[Cell]:
        """Every variant of every version on every case, in the order of the run."""
        sources = {row["backend"]: row["source"] for row in self.comparison.backend_rows}
        whole = [outcome for outcome in self.comparison.outcomes if outcome.task.loss_step is None]
        longest = {case.name: max(case.seq_lens) for case in self.comparison.cases}
        return [
            _cell(outcome, sources.get(outcome.backend, ""))
            for outcome in whole
            if outcome.backend.startswith("flux-") and outcome.task.seq_len == longest[outcome.task.case.name]
        ]

    @cached_property
    def versions(self) -> list[str]:
        """The Flux versions of the run, oldest first."""
        return list(dict.fromkeys(cell.version for cell in self.cells))

    @cached_property
    def table(self) -> pd.DataFrame:
        """``flux.csv``: one row per case, variant and version."""
        import pandas as pd

        faults: dict[tuple[str, str], list[str]] = {}
        for finding in self.comparison.findings:
            faults.setdefault((finding.case, finding.backend), []).append(finding.match.fault)
        rows = [
            {
                "case": cell.case,
                "model": cell.name.model,
                "application": cell.name.application,
                "api": cell.name.api,
                "requested": cell.name.requested,
                "reset": cell.name.reset,
                "state": cell.name.holder,
                "version": cell.version,
                "source": cell.source,
                "verdict": cell.verdict,
                "wrong": " ".join(cell.wrong),
                "fault": " | ".join(faults.get((cell.case, cell.backend), ())),
                "dweight_ih": cell.value,
                "truth": cell.truth,
                "worst_rel_err": max(cell.wrong.values(), default=None),
                "reason": cell.reason,
            }
            for cell in self.cells
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def rows(self, case: str) -> list[tuple[Name, dict[str, Cell]]]:
        """Each variant of one case with its cells by version, in the axes' order."""
        return rows([cell for cell in self.cells if cell.case == case])

    def advice(self) -> list[str]:
        """Plain sentences on what is right everywhere, and what only in some versions; computed from the table."""
        return advice(self.cells)


def read(table: pd.DataFrame) -> list[Cell]:
    """Take the cells from ``flux.csv``, which keeps the largest of each cell's errors only."""
    return [
        Cell(
            row.case,
            "",
            Name(row.model, row.application, row.api, row.requested, row.reset, row.state),
            row.version,
            row.source,
            row.verdict,
            dict.fromkeys(row.wrong.split(), row.worst_rel_err),
            None if np.isnan(row.dweight_ih) else row.dweight_ih,
            None if np.isnan(row.truth) else row.truth,
            row.reason,
        )
        for row in table.itertuples(index=False)
    ]


def rows(cells: Iterable[Cell]) -> list[tuple[Name, dict[str, Cell]]]:
    """Arrange one case's cells: each variant with its cells by version, in the axes' order."""
    found: dict[Name, dict[str, Cell]] = {}
    for cell in cells:
        found.setdefault(cell.name, {})[cell.version] = cell
    return sorted(
        found.items(),
        key=lambda item: tuple(
            _AXES[axis].index(value) for axis, value in zip(Name._fields, item[0], strict=True) if value in _AXES[axis]
        ),
    )


def advice(cells: Sequence[Cell]) -> list[str]:
    """Say what is right everywhere, and what only in some versions."""
    verdicts: dict[Name, dict[str, set[str]]] = {}
    for cell in cells:
        if cell.verdict != NONE:
            verdicts.setdefault(cell.name, {}).setdefault(cell.version, set()).add(cell.verdict)
    versions = list(dict.fromkeys(cell.version for cell in cells))
    groups: dict[tuple[str, str, str], list[Name]] = {}
    for name, by_version in verdicts.items():
        good = [version for version, found in by_version.items() if found == {RIGHT}]
        bad = [version for version in by_version if version not in good]
        kind = "some" if good and bad else "never" if bad else "all" if good == versions else "exists"
        groups.setdefault((kind, ", ".join(good), ", ".join(bad)), []).append(name)
    words = {
        "all": "Right in every version here ({0})",
        "exists": "Right wherever it exists ({0})",
        "some": "Right only in {0}, not in {1}",
        "never": "Never right ({1})",
    }
    return [
        f"{words[kind].format(good, bad)}: {_listed(names)}."
        for kind in words
        for (found, good, bad), names in groups.items()
        if found == kind
    ]


_AXES = {
    "model": ["recur", "chain", "closure", "cell", "layer"],
    "application": ["broadcast", "comprehension", "map", "for", "array3d", "sequence"],
    "api": ["implicit", "explicit"],
    "requested": ["weights+state", "weights"],
    "reset": ["before", "inside", "none"],
    "holder": ["", "captured", "ref", "local-struct", "struct", "global"],
}


def label(name: Name) -> str:
    """Write a variant for people: model, application, API, and what differs from the default."""
    words = [name.model + (f"({name.holder})" if name.holder else ""), name.application, name.api]
    if name.requested == "weights":
        words.append("weights")
    if name.reset != "before":
        words.append("inside" if name.reset == "inside" else "stale")
    return " ".join(words)


def _listed(names: Sequence[Name]) -> str:
    """List variants, the applications of otherwise equal ones together."""
    groups: dict[str, list[str]] = {}
    for name in names:
        parts = label(name).split(" ")
        groups.setdefault(" ".join([parts[0], "{}", *parts[2:]]), []).append(parts[1])
    return "; ".join(pattern.format("/".join(applications)) for pattern, applications in groups.items())


def _cell(outcome: Outcome, source: str) -> Cell:
    line, _, variant = outcome.backend.partition("/")
    name = Name.parse(variant)
    found = outcome.quantities
    wrong = {
        quantity: _relative(judged) for quantity, judged in found.items() if judged.verdict not in (AGREES, *NO_VALUES)
    }
    weights = [judged for quantity, judged in found.items() if quantity.startswith("dweight")]
    value, truth = _scalar(found.get("dweight_ih"))
    errors = [judged.reason for judged in found.values() if judged.verdict in (CRASHED, TIMED_OUT)]
    if errors:
        verdict = ERROR
    elif all(judged.verdict in NO_VALUES for judged in found.values()):
        verdict = NONE
    elif weights and all(judged.nothing and judged.verdict == DISAGREES for judged in weights):
        verdict = NOTHING
    else:
        verdict = WRONG if wrong else RIGHT
    reasons = errors or [judged.reason for judged in found.values() if judged.verdict not in (AGREES,)]
    if verdict == RIGHT:
        reasons = [judged.reason for judged in found.values()]
    return Cell(
        outcome.task.case.name,
        outcome.backend,
        name,
        line.removeprefix("flux-"),
        source,
        verdict,
        wrong,
        value,
        truth,
        " | ".join(dict.fromkeys(filter(None, reasons))),
    )


def _relative(judged: Judged) -> float:
    """Norm of the error over the norm of the true gradient; NaN for nothing."""
    if judged.nothing or judged.verdict == NOT_REPEATABLE:
        return float("nan")
    error = sum(float(np.nansum(np.square(block.value - block.reference))) for block in judged.blocks)
    size = sum(float(np.sum(np.square(block.reference))) for block in judged.blocks)
    return float(np.sqrt(error / size)) if size else float("inf")


def _scalar(judged: Judged | None) -> tuple[float | None, float | None]:
    if judged is None or len(judged.blocks) != 1 or judged.blocks[0].value.size != 1:
        return None, None
    block = judged.blocks[0]
    value: Any = None if judged.nothing else float(block.value.item())
    return value, float(block.reference.item())
