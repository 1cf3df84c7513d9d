"""A run's tables read back from its folder."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pandas as pd

from bridge.errors import BadInputError
from bridge.report.tables import INTEGERS
from bridge.verdicts import SHORT, VERDICTS

NUMBERS = {
    *INTEGERS, "value", "reference", "abs_err", "rel_err", "ulps", "tolerance", "max_abs_err", "max_rel_err",
    "max_ulps", "fault_residual", "dweight_ih", "truth", "worst_rel_err",
}  # fmt: skip
"""Columns of numbers; every other column is text."""


JUDGED = ("gradients", "timesteps", "summary", "jacobian")
"""Tables whose verdicts are those of a comparison."""


class Manifest(msgspec.Struct):
    """What of ``run.json`` a report tells.

    A sweep keeps the number of its cases and the names of its backends, other runs keep what is known of each.
    """

    kind: Literal["compare", "flux", "sweep"]
    gradbridge: str = ""
    started: str = ""
    command: list[str] = []
    interrupted: bool = False
    platform: dict[str, Any] = {}
    cases: dict[str, dict[str, Any]] | int = {}
    backends: dict[str, dict[str, Any]] | list[str] = {}
    switches: dict[str, dict[str, Any]] = {}
    noise_floor: dict[str, Any] = {}
    seed: int | None = None
    stopped: dict[str, str] = {}

    def case(self, name: str) -> dict[str, Any]:
        """What is known of a case."""
        return {} if isinstance(self.cases, int) else self.cases.get(name, {})

    def backend(self, name: str) -> dict[str, Any]:
        """What is known of a backend."""
        return {} if isinstance(self.backends, list) else self.backends.get(name, {})


class Saved:
    """The folder of a run.

    Attributes
    ----------
    folder : where it lies.
    manifest : of its ``run.json``.

    Raises
    ------
    BadInputError
        When there is no ``run.json``, or one that is not a run's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "run.json"
        try:
            self.manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            expected = "a folder that gradbridge compare, flux or sweep wrote"
            raise BadInputError(str(folder), "", expected, "no run.json in it") from None
        except OSError as error:
            raise BadInputError(str(path), "", "a readable file", error.strerror or str(error)) from None
        except msgspec.DecodeError as error:
            raise BadInputError(str(path), "", "what a run writes", str(error)) from None

    def has(self, name: str) -> bool:
        """Whether the run wrote that table."""
        return self._path(name).exists()

    def _path(self, name: str) -> Path:
        """Where a table lies; a large one may be Parquet."""
        parquet = self.folder / f"{name}.parquet"
        return parquet if parquet.exists() else self.folder / f"{name}.csv"

    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Read columns of a table; numbers as float64, NaN where empty, text as it is.

        Parameters
        ----------
        name : of the file, without suffix.
        columns : which; all if None.

        Raises
        ------
        BadInputError
            Naming the file, and the column that is missing or holds what it cannot.
        """
        path = str(self._path(name))
        try:
            there = _names(path)
            missing = next((column for column in columns or () if column not in there), None)
            if missing is not None:
                raise BadInputError(path, missing, "that column", f"only {', '.join(there)}")
            frame = _read(path, columns or there, NUMBERS)
        except OSError as error:
            raise BadInputError(path, "", "a readable file", error.strerror or str(error)) from None
        except (ValueError, OverflowError, pd.errors.ParserError) as error:
            if isinstance(error, BadInputError):
                raise
            raise BadInputError(path, _culprit(path), "a table as a run writes it", str(error)) from None
        for column in frame:
            known = frame[column][frame[column].notna()] if column in INTEGERS else pd.Series(dtype=float)
            wrong = known[(known < 0) | (known % 1 != 0) | (known >= 2**31)]
            if len(wrong):
                raise BadInputError(path, str(column), "whole numbers from 0 on", f"{wrong.iloc[0]:g}")
        for column, allowed in (("quantity", tuple(SHORT)), ("verdict", VERDICTS)):
            strange = set(frame[column]) - set(allowed) if column in frame and name in JUDGED else None
            if strange:
                raise BadInputError(path, column, f"one of {', '.join(allowed)}", repr(min(strange)))
        return frame


def _names(path: str) -> list[str]:
    if path.endswith(".parquet"):
        from pyarrow import parquet

        return list(parquet.read_schema(path).names)
    return list(pd.read_csv(path, nrows=0))


def _read(path: str, columns: Sequence[str], numbers: Set[str]) -> pd.DataFrame:
    if path.endswith(".parquet"):
        from pyarrow import parquet

        frame = parquet.read_table(path, columns=list(columns)).to_pandas()
        return frame.astype({name: np.float64 if name in numbers else str for name in columns})
    return pd.read_csv(
        path,
        usecols=list(columns),
        dtype={name: np.float64 if name in numbers else str for name in columns},
        keep_default_na=False,  # a case may be called NA
        na_values={name: [""] for name in columns if name in numbers},
        float_precision="round_trip",
    )


def _culprit(path: str) -> str:
    """Find the column of numbers that holds something else; empty where that is not what is wrong."""
    if path.endswith(".parquet"):
        return ""
    try:
        text = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (ValueError, pd.errors.ParserError):
        return ""
    for name in text:
        if name in NUMBERS:
            try:
                text[name].replace("", "nan").astype(np.float64)
            except ValueError:
                return str(name)
    return ""
