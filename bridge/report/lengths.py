"""Each position's dL/dx over several sequence lengths, as in apache/mxnet#21143.

A right gradient of an earlier position changes when the sequence grows, since later outputs depend on it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bridge.arithmetic import Array
from bridge.report.dense import groups

if TYPE_CHECKING:
    import pandas as pd

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

    @property
    def right(self) -> bool:
        """Whether no position is wrongly the same."""
        return WRONGLY_SAME not in self.growth


def by_length(gradients: pd.DataFrame) -> list[Lengths]:
    """Return the view of one case's rows of ``gradients.csv``; backends with one length only are left out."""
    rows = gradients[(gradients["quantity"] == "dx") & gradients["loss_step"].isna()]
    having: dict[str, dict[int, Mapping[str, Array]]] = {}
    if rows["seq_len"].nunique() > 1:
        names = ("value", "reference", "tolerance")
        for (backend, length), arrays in groups(rows, ("backend", "seq_len"), ("timestep", "batch", "row"), names):
            if not np.isnan(arrays["value"]).all():
                having.setdefault(str(backend), {})[int(length)] = arrays
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], Lengths] = {}
    for backend, own in having.items():
        if len(own) < 2:
            continue
        lengths = tuple(sorted(own))
        values, reference = (
            {n: tuple(own[n][name][:, 0, 0].tolist()) for n in lengths} for name in ("value", "reference")
        )
        growth = tuple(_growth(step, [own[n] for n in lengths if n > step]) for step in range(lengths[-1]))
        digits = tuple(f"{value:.8f}" for n in lengths for value in values[n])
        known = found.setdefault((digits, growth), Lengths(lengths, values, reference, growth, []))
        known.backends.append(backend)
    return list(found.values())


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
