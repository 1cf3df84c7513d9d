"""A comparison in a notebook: its verdicts as a small HTML table, time steps and Jacobian maps as figures."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from bridge.case import QUANTITY_ORDER
from bridge.errors import BadInputError
from bridge.report.tables import SEQUENCES
from bridge.verdicts import SHORT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bridge.comparison import Comparison
    from bridge.jacobian import JacobianMap

MOST_ROWS = 100
"""Rows of the table, and sentences below it, that a notebook gets."""


def as_html(comparison: Comparison) -> str:
    """Return the verdicts, a row per case and backend, and the findings' sentences; all text escaped."""
    summary = comparison.summary
    quantities = [name for name in QUANTITY_ORDER if (summary["quantity"] == name).any()]
    head = "".join(f"<th>{text}</th>" for text in ("case", "backend", *(SHORT[name] for name in quantities)))
    groups = list(summary.groupby(["case", "backend"], sort=False))
    rows = []
    for (case, backend), own in groups[:MOST_ROWS]:
        found = {row.quantity: (row.verdict, row.reason) for row in own.itertuples()}
        cells = [_cell(*found[name]) if name in found else "<td></td>" for name in quantities]
        rows.append(f"<tr><td>{html.escape(case)}</td><td>{html.escape(backend)}</td>{''.join(cells)}</tr>")
    sentences = [html.escape(finding.sentence) for finding in comparison.findings]
    lines = sentences[:MOST_ROWS]
    for count, what in ((len(groups), "rows"), (len(sentences), "findings")):
        if count > MOST_ROWS:
            lines.append(f"... and {count - MOST_ROWS} more {what}")
    listed = f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>" if lines else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{listed}"


def _cell(verdict: str, reason: str) -> str:
    text = html.escape(verdict) if verdict == "agrees" else f"<b>{html.escape(verdict)}</b>"
    return f'<td title="{html.escape(reason)}">{text}</td>'


def plot_timesteps(
    comparison: Comparison, quantity: str, case: str | None, backend: str | None, seq_len: int | None
) -> Figure:
    """Draw each backend's worst error at each time step, and the tolerance there, on a logarithmic scale."""
    if quantity not in SEQUENCES:
        raise BadInputError("plot_timesteps", "quantity", " or ".join(SEQUENCES), repr(quantity))
    table = comparison.gradients
    table = table[(table["quantity"] == quantity) & table["loss_step"].isna()]
    table = _chosen("plot_timesteps", "case", table, case, first=True)
    table = _chosen("plot_timesteps", "backend", table, backend)
    length = int(table["seq_len"].max())
    table = _chosen("plot_timesteps", "seq_len", table, length if seq_len is None else seq_len)
    figure, axes = _pyplot().subplots(figsize=(7, 4), layout="constrained")
    for name, own in table.groupby("backend", sort=False, observed=True):
        worst = own.groupby("timestep")["abs_err"].max()
        steps = worst.index.to_numpy(dtype=int)
        axes.plot(steps, _positive(worst.to_numpy(dtype=float)), marker="o", label=str(name))
    allowed = table.groupby("timestep")["tolerance"].max()
    axes.plot(
        allowed.index.to_numpy(dtype=int),
        allowed.to_numpy(dtype=float),
        color="black",
        linestyle="--",
        label="tolerance",
    )
    axes.set_yscale("log")
    axes.set_xlabel("time step")
    axes.set_ylabel(f"largest absolute error of {quantity}")
    axes.set_title(f"{table['case'].iloc[0]}, L={table['seq_len'].iloc[0]}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside lower center", fontsize="small")
    return _finished(figure)


def plot_jacobian(comparison: Comparison, case: str | None, backend: str | None) -> Figure:
    """Draw the largest absolute value of each block of a Jacobian map; blank where it is within the tolerance."""
    found = _map(comparison, case, backend)
    pyplot = _pyplot()
    figure, all_axes = pyplot.subplots(1, 3, figsize=(11, 4), layout="constrained", sharex=True, sharey=True)
    values = [
        np.abs(array).max(axis=(2, 3)) for array in (found.reference, found.values, found.values - found.reference)
    ]
    top = float(np.nanmax(np.nan_to_num(values[:2]), initial=0)) or 1.0
    least = min(float(np.nanmax(found.tolerance)), top / 10)
    norm = pyplot.matplotlib.colors.LogNorm(least, top)
    for axes, array, title in zip(all_axes, values, ("reference", found.backend, "difference"), strict=True):
        shown = np.where(array > least, array, np.nan)
        image = axes.imshow(shown, norm=norm, cmap="viridis", interpolation="nearest")
        axes.set_title(title)
        axes.set_xlabel("input step t")
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True)
    all_axes[0].set_ylabel("loss step s")
    figure.colorbar(image, ax=list(all_axes), label="largest |dL_s/dx_t|; blank: within the tolerance")
    figure.suptitle(found.case.name)
    return _finished(figure)


def _map(comparison: Comparison, case: str | None, backend: str | None) -> JacobianMap:
    if not comparison.maps:
        raise BadInputError("plot_jacobian", "", "a comparison made with jacobian=True", "one without Jacobian maps")
    fitting = [
        found for found in comparison.maps if case in (None, found.case.name) and backend in (None, found.backend)
    ]
    if not fitting:
        known = ", ".join(f"{found.case.name} by {found.backend}" for found in comparison.maps)
        raise BadInputError("plot_jacobian", "", f"one of {known}", f"{case or 'any case'} by {backend or 'any'}")
    return fitting[0]


def _chosen(where: str, column: str, table: Any, value: Any, first: bool = False) -> Any:
    """Rows of one value of a column; all, or those of the first value, where none is named."""
    known = list(dict.fromkeys(table[column]))
    if not known:
        raise BadInputError(where, "", "a comparison with values of that quantity", "none")
    if value is None:
        return table[table[column] == known[0]] if first else table
    if value not in known:
        raise BadInputError(where, column, "one of " + ", ".join(map(str, known)), repr(value))
    return table[table[column] == value]


def _positive(errors: Any) -> Any:
    """Errors of zero have no place on a logarithmic scale."""
    return np.where(errors > 0, errors, np.nan)


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("plots need matplotlib, get it with: pip install gradbridge[plot]") from None
    return pyplot


def _finished(figure: Figure) -> Figure:
    """Take the figure out of pyplot's list, else a notebook would show it twice and a script would keep it."""
    _pyplot().close(figure)
    return figure
