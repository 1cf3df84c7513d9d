"""Each position's dL/dx over several sequence lengths, as in apache/mxnet#21143.

A right gradient of an earlier position changes when the sequence grows, since later outputs depend on it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from bridge.arithmetic import Array

WRONGLY_SAME, RIGHTLY_SAME, CHANGES = "wrongly same", "same, rightly", "changes"


@dataclasses.dataclass(frozen=True)
class Lengths:
    """dL/dx[t, 0, 0] by sequence length, of the backends whose digits are alike.

    Attributes
    ----------
    lengths : the sequence lengths, ascending.
    values, reference : by length, dL/dx[t, 0, 0] for each of its steps t.
    growth : per position whether it stays within rounding over all lengths, and whether it should; empty where there
        is one length only. All batch elements and features count.
    backends : who gave these digits.
    """

    lengths: tuple[int, ...]
    values: Mapping[int, tuple[float, ...]]
    reference: Mapping[int, tuple[float, ...]]
    growth: tuple[str, ...]
    backends: list[str]


def by_length(gradients: pd.DataFrame) -> list[Lengths]:
    """Return the view of one case's rows of ``gradients.csv``; backends with one length only are left out."""
    rows = gradients[(gradients["quantity"] == "dx") & gradients["loss_step"].isna()]
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], Lengths] = {}
    for backend, own in rows.groupby("backend", sort=False, observed=True):
        arrays = {int(n): _arrays(some) for n, some in own.groupby("seq_len") if some["value"].notna().any()}
        if len(arrays) < 2:
            continue
        lengths = tuple(sorted(arrays))
        values, reference = (
            {n: tuple(arrays[n][name][:, 0, 0].tolist()) for n in lengths} for name in ("value", "reference")
        )
        growth = tuple(_growth(step, [arrays[n] for n in lengths if n > step]) for step in range(lengths[-1]))
        digits = tuple(f"{value:.8f}" for n in lengths for value in values[n])
        known = found.setdefault((digits, growth), Lengths(lengths, values, reference, growth, []))
        known.backends.append(str(backend))
    return list(found.values())


def _arrays(rows: pd.DataFrame) -> dict[str, Array]:
    """Value, reference and tolerance, (T, B, I)."""
    index = tuple(rows[name].to_numpy(np.int64) for name in ("timestep", "batch", "row"))
    arrays = {}
    for name in ("value", "reference", "tolerance"):
        arrays[name] = np.full([axis.max() + 1 for axis in index], np.nan)
        arrays[name][index] = rows[name].to_numpy(np.float64)
    return arrays


def _growth(step: int, having: Sequence[Mapping[str, Array]]) -> str:
    if len(having) < 2:
        return ""

    def stays(name: str) -> bool:
        return all(
            bool(np.all(np.abs(b[name][step] - a[name][step]) <= a["tolerance"][step] + b["tolerance"][step]))
            for a, b in itertools.pairwise(having)
        )

    if not stays("value"):
        return CHANGES
    return RIGHTLY_SAME if stays("reference") else WRONGLY_SAME
