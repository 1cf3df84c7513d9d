"""Rows of a tidy table as dense arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bridge.arithmetic import Array

if TYPE_CHECKING:
    import pandas as pd


def groups(
    rows: pd.DataFrame, by: Sequence[str], axes: Sequence[str], names: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Array]]]:
    """Yield each group's key, and its columns as arrays with an axis per index column.

    Parameters
    ----------
    rows : a table.
    by : columns that tell the groups apart; none is empty anywhere.
    axes : columns of 0-based indices, none empty.
    names : columns of numbers; float64 in the arrays, NaN where a row is missing.
    """
    indices = [rows[axis].to_numpy(np.int64) for axis in axes]
    columns = {name: rows[name].to_numpy(np.float64) for name in names}
    for key, at in rows.groupby(list(by), sort=False, observed=True).indices.items():
        index = tuple(axis[at] for axis in indices)
        shape = [axis.max() + 1 for axis in index]
        arrays = {}
        for name, column in columns.items():
            arrays[name] = np.full(shape, np.nan)
            arrays[name][index] = column[at]
        yield key, arrays
