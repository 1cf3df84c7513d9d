"""A run's tables as files, CSV or Parquet, and the manifest as JSON. Each appears whole or not at all."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bridge.case import atomic
from bridge.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd
    import pyarrow as pa

    from bridge.comparison import Comparison

FORMATS = ("csv", "parquet")
"""Of the tables with a row per element or pair of backends, which are written as they are made; the others are CSV."""

TABLES = {"timesteps": "timesteps", "summary": "summary", "findings": "faults", "backends": "backends"}
"""File name -> table of a comparison."""

ONLY_WHERE_ANY = ("not_repeatable", "relations")
"""Tables that are written only where they have rows."""


def save(comparison: Comparison, folder: Path, skip: Sequence[str] = (), format: str = "csv") -> Path:
    """Write every table of a comparison and its report but those to skip into a folder, which is made if missing.

    Raises
    ------
    BadInputError
        When it cannot be written, or for an unknown format of the large tables.
    """
    from bridge.report import tables

    if format not in FORMATS:
        raise BadInputError("save", "format", f"one of {', '.join(FORMATS)}", repr(format))
    large = {
        "gradients": tables.gradient_batches(comparison.outcomes),
        "pairs": tables.pair_batches(comparison.outcomes),
        "jacobian": tables.jacobian_batches(comparison.maps),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, batches in large.items():
            if name in skip:
                continue
            first = next(batches, None)
            for each in FORMATS:
                if first is None or each != format:
                    (folder / f"{name}.{each}").unlink(missing_ok=True)
            if first is not None:
                write_batches(itertools.chain([first], batches), folder / f"{name}.{format}")
        for name, attribute in TABLES.items():
            if name not in skip:
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


def write_batches(batches: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write a table as its rows come: CSV that reads back to the same bits, or Parquet if the suffix says so."""
    with atomic(path) as temporary, open(temporary, "wb") as file:
        (_parquet if path.suffix == ".parquet" else _csv)(batches, file)


def _csv(batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> None:
    import pyarrow as pa

    for number, batch in enumerate(batches):
        if number == 0:
            file.write((",".join(batch.schema.names) + "\n").encode())
        try:
            text = _as_csv(batch, "none")
        except pa.ArrowInvalid:  # a name that holds a comma, a quote or a line's end
            text = _as_csv(batch, "needed")
        file.write(text)


def _as_csv(batch: pa.RecordBatch, quoting: str) -> pa.Buffer:
    import pyarrow as pa
    from pyarrow import csv

    stream = pa.BufferOutputStream()
    csv.write_csv(batch, stream, csv.WriteOptions(include_header=False, quoting_style=quoting))
    return stream.getvalue()


def _parquet(batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rest = iter(batches)
    first = next(rest)
    repeating = [field.name for field in first.schema if not pa.types.is_floating(field.type)]
    with parquet.ParquetWriter(file, first.schema, compression="zstd", use_dictionary=repeating) as writer:
        for batch in itertools.chain([first], rest):
            writer.write_batch(batch)


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
