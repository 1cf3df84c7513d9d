"""The numbers behind the charts, compact enough to stand in the page: the browser draws them when they are looked at.

Backends whose numbers are alike to the digits shown are one series. What disagrees comes first; the rest is left out
where the page would grow too large.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bridge.answers import UNAVAILABLE
from bridge.arithmetic import Array
from bridge.jacobian import COLUMNS, characters, signs
from bridge.report.dense import groups
from bridge.verdicts import VERDICTS, WRONG

if TYPE_CHECKING:
    from bridge.report.saved import Saved

STEPS_BYTES, MAPS_BYTES = 1_500_000, 1_500_000
"""How much of a page the two kinds of charts may take."""

MOST_ELEMENTS = 4
"""Elements of a gradient whose values are shown step by step."""

STEPS = (
    "case", "backend", "quantity", "seq_len", "loss_step", "timestep", "batch", "row", "value", "reference", "abs_err",
    "tolerance",
)  # fmt: skip
_FIGURE = ["case", "quantity", "seq_len", "loss_step"]


class Pool:
    """Lists of numbers, each kept once."""

    def __init__(self) -> None:
        self.lists: list[list[float | None]] = []
        self.known: dict[tuple[float | None, ...], int] = {}

    def add(self, array: Array, digits: int) -> int:
        """Return where a flattened array is kept, rounded to so many digits; what is not finite is None."""
        numbers = [float(f"{value:.{digits}g}") for value in array.ravel().tolist()]  # the largest round to infinity
        rounded = tuple(value if math.isfinite(value) else None for value in numbers)
        if rounded not in self.known:
            self.known[rounded] = len(self.lists)
            self.lists.append(list(rounded))
        return self.known[rounded]


def steps(timesteps: pd.DataFrame, gradients: pd.DataFrame) -> tuple[list[dict[str, Any]], int]:
    """Return the figures of ``y`` and ``dx`` over the time steps, and how many are left out.

    A figure belongs to a case, quantity, sequence length and loss step. Per series and step it holds the error and the
    tolerance of the element whose error is the largest part of its tolerance, and some elements' values.

    Parameters
    ----------
    timesteps, gradients : the tables of that name.
    """
    plan: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in timesteps.fillna({"loss_step": -1}).itertuples(index=False):
        judged = plan.setdefault((row.case, row.quantity, row.seq_len, row.loss_step), {})
        if row.verdict in WRONG or row.backend not in judged:
            judged[row.backend] = row.verdict
    longest: dict[str, float] = {}
    for case, _, seq_len, _ in plan:
        longest[case] = max(seq_len, longest.get(case, 0))
    order = sorted(
        plan,
        key=lambda key: (key[3] >= 0, not set(plan[key].values()) & set(WRONG), key[2] != longest[key[0]]),
    )
    rows = gradients[gradients["quantity"].isin(["y", "dx"])].fillna({"loss_step": -1})
    names = ("value", "reference", "abs_err", "tolerance")
    having: dict[tuple[Any, ...], dict[str, dict[str, Array]]] = {}
    for place, arrays in groups(rows, [*_FIGURE, "backend"], ("timestep", "batch", "row"), names):
        having.setdefault(place[:-1], {})[place[-1]] = arrays | {"part": _part(arrays)}
    order = [key for key in order if key in having]
    return _within(STEPS_BYTES, (_figure(key, plan[key], having[key]) for key in order), len(order))


def _within(most: int, figures: Iterator[dict[str, Any]], total: int) -> tuple[list[dict[str, Any]], int]:
    """Take figures while they fit."""
    kept: list[dict[str, Any]] = []
    size = 0
    for figure in figures:
        size += len(json.dumps(figure, separators=(",", ":")))
        if size > most:
            break
        kept.append(figure)
    return kept, total - len(kept)


def _figure(key: tuple[Any, ...], judged: dict[str, str], arrays: dict[str, dict[str, Array]]) -> dict[str, Any]:
    case, quantity, seq_len, loss_step = key
    elements = _elements(judged, arrays)
    pool = Pool()
    series: dict[tuple[Any, ...], dict[str, Any]] = {}
    for backend, found in arrays.items():
        error, tolerance = _worst(found)
        one: dict[str, Any] = {
            "verdict": judged[backend],
            "error": pool.add(error, 3),
            "tolerance": pool.add(tolerance, 3),
            "values": [pool.add(found["value"][:, b, i], 10) for b, i in elements],
            "reference": [pool.add(found["reference"][:, b, i], 10) for b, i in elements],
        }
        alike = (one["verdict"], one["error"], one["tolerance"], *one["values"], *one["reference"])
        series.setdefault(alike, one | {"backends": []})["backends"].append(backend)
    return {
        "case": case,
        "quantity": quantity,
        "length": int(seq_len),
        "loss": int(loss_step) if loss_step >= 0 else None,
        "elements": elements,
        "series": sorted(series.values(), key=lambda one: one["verdict"] not in WRONG),
        "numbers": pool.lists,
    }


def _part(found: dict[str, Array]) -> Array:
    """Error as part of the tolerance, (T, B, I); -1 where there is none."""
    with np.errstate(all="ignore"):
        return np.nan_to_num(found["abs_err"] / found["tolerance"], nan=-1.0)


def _worst(found: dict[str, Array]) -> tuple[Array, Array]:
    """Error and tolerance, (T,), of each step's worst element."""
    steps = len(found["part"])
    at = found["part"].reshape(steps, -1).argmax(axis=1)
    error, tolerance = (found[name].reshape(steps, -1)[np.arange(steps), at] for name in ("abs_err", "tolerance"))
    return error, tolerance


def _elements(judged: dict[str, str], arrays: dict[str, dict[str, Array]]) -> list[tuple[int, int]]:
    """Take the worst (batch, row) of each backend that is wrong, or of the first one."""
    wrong = [name for name in arrays if judged[name] in WRONG] or list(arrays)[:1]
    found: dict[tuple[int, int], None] = {}
    for name in wrong:
        part = arrays[name]["part"]
        _, batch, row = np.unravel_index(int(part.argmax()), part.shape)
        found[int(batch), int(row)] = None
    return list(found)[:MOST_ELEMENTS]


def maps(saved: Saved) -> tuple[list[dict[str, Any]], int]:
    """Return the Jacobian maps, and how many cases' are left out.

    A figure belongs to a case. Per series it holds each block's size, which is its Euclidean norm over batch and
    features, the reference's, and the largest distance between the two, all (S, T) row by row. Backends that agree and
    have the same marks are one series, with the first one's values.

    Raises
    ------
    BadInputError
        When ``jacobian.csv`` is broken.
    """
    if not saved.has("jacobian"):
        return [], 0
    rows = saved.table("jacobian", COLUMNS)
    rows["verdict"] = rows["verdict"].map(VERDICTS.index).astype(np.float64)
    cases: dict[str, dict[str, dict[str, Array]]] = {}
    names = ("value", "reference", "abs_err", "verdict")
    axes = ("loss_step", "timestep", "batch", "row")
    for (case, backend), arrays in groups(rows, ("case", "backend"), axes, names):
        unanswered = VERDICTS.index(UNAVAILABLE)
        arrays["verdict"] = np.nan_to_num(arrays["verdict"], nan=unanswered).astype(np.int8)
        cases.setdefault(str(case), {})[str(backend)] = arrays
    order = sorted(cases, key=lambda case: not any(_is_wrong(arrays) for arrays in cases[case].values()))
    return _within(MAPS_BYTES, (_map(case, cases[case]) for case in order), len(order))


def _is_wrong(arrays: dict[str, Array]) -> bool:
    return bool(np.isin(arrays["verdict"], [VERDICTS.index(name) for name in WRONG]).any())


def _map(case: str, having: dict[str, dict[str, Array]]) -> dict[str, Any]:
    pool = Pool()
    series: dict[tuple[Any, ...], dict[str, Any]] = {}
    for backend, found in having.items():
        value, reference = found["value"], found["reference"]
        marks = characters(value, reference, signs(value, reference, found["verdict"]))
        wrong = _is_wrong(found)
        with np.errstate(all="ignore"):
            one = {
                "wrong": wrong,
                "marks": "".join(marks),
                "value": pool.add(_size(value), 7),
                "reference": pool.add(_size(reference), 7),
                "difference": pool.add(found["abs_err"].max(axis=(2, 3)), 3),
            }
        alike = tuple(one.values()) if wrong else (one["marks"], one["reference"])
        series.setdefault(alike, one | {"steps": len(value), "backends": []})["backends"].append(backend)
    return {
        "case": case,
        "wrong": any(one["wrong"] for one in series.values()),
        "series": sorted(series.values(), key=lambda one: not one["wrong"]),
        "numbers": pool.lists,
    }


def _size(array: Array) -> Array:
    size: Array = np.sqrt(np.square(array).sum(axis=(2, 3)))
    return size
