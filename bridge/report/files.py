"""A run's tables as files: CSV, and the manifest as JSON. Each appears whole or not at all."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.case import atomic
from bridge.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from bridge.comparison import Comparison

TABLES = {
    "gradients": "gradients",
    "timesteps": "timesteps",
    "summary": "summary",
    "findings": "faults",
    "pairs": "pairs",
    "backends": "backends",
}
"""File name -> table of a comparison."""

ONLY_WHERE_ANY = ("not_repeatable", "jacobian", "relations")
"""Tables that are written only where they have rows."""


def save(comparison: Comparison, folder: Path, skip: Sequence[str] = ()) -> Path:
    """Write every table of a comparison and its report but those to skip into a folder, which is made if missing.

    Raises
    ------
    BadInputError
        When it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, attribute in TABLES.items():
            if name in skip:
                continue
            write_csv(getattr(comparison, attribute), folder / f"{name}.csv")
        for name in ONLY_WHERE_ANY:
            table = getattr(comparison, name)
            if len(table):
                write_csv(table, folder / f"{name}.csv")
            else:
                (folder / f"{name}.csv").unlink(missing_ok=True)
        write_json(dict(comparison.manifest), folder / "run.json")
    except OSError as error:
        raise unwritable(folder, error) from None
    if "report" not in skip:
        write_report(folder)
    return folder


def write_report(folder: Path) -> Path:
    """Write ``report.html`` from the tables saved in a folder.

    Raises
    ------
    BadInputError
        When one of them is broken, or it cannot be written.
    """
    from bridge.report import html

    return html.write(folder)


def check_writable(folder: str) -> None:
    """Make the folder and try it, so that a run does not end at a folder that cannot take its results.

    Raises
    ------
    BadInputError
        When it cannot be written.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable(Path(folder), error) from None


def unwritable(folder: Path, error: OSError) -> BadInputError:
    """Return the refusal for a folder that cannot be written."""
    return BadInputError(str(folder), "", "a folder that can be written", error.strerror or str(error))


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table; floats as the shortest decimals that read back to the same bits.

    Raises
    ------
    BadInputError
        When it cannot be written.
    """
    try:
        with atomic(path) as temporary:
            frame.to_csv(temporary, index=False, lineterminator="\n")
    except OSError as error:
        raise unwritable(path.parent, error) from None


def write_json(value: Any, path: Path) -> None:
    """Write plain data, sorted and indented; NaN becomes null."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(_finite(value), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
