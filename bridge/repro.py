"""Scripts for a finding of a sweep, or for a case and a backend: each is run before it is written."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bridge.answers import Task
from bridge.backends.base import Backend
from bridge.backends.registry import Sources, select
from bridge.batches import Assignment, Bench, examine
from bridge.case import Case, atomic, load_case
from bridge.errors import BadInputError
from bridge.faults import Matcher
from bridge.kinds import describe, slug
from bridge.report.files import unwritable
from bridge.reproducers import Fault, Wanted, reproduce
from bridge.tolerance import truth


def of_finding(folder: Path, name: str, out: Path, sources: Sources | None = None) -> list[Path]:
    """Write the script and report of a finding that a sweep saved.

    Parameters
    ----------
    folder : the sweep's.
    name : the finding's, as in ``findings.csv``.
    out : where to write.

    Raises
    ------
    BadInputError
        For a folder or name that is not there, or where no script shows the fault here.
    """
    table = folder / "findings.csv"
    try:
        with table.open(encoding="utf-8", newline="") as file:
            rows = {row["finding"]: row for row in csv.DictReader(file)}
    except (OSError, KeyError) as error:
        raise BadInputError(str(table), "", "the findings of a sweep", str(error)) from None
    if name not in rows:
        raise BadInputError(str(table), "finding", f"one of {', '.join(rows) or 'none'}", repr(name))
    row = rows[name]
    case = load_case(folder / "cases" / f"{row['min_case']}.json")
    asked: dict[str, Any] = dict(part.split("=", 1) for part in row["asked"].split())
    if "accumulate" in asked:
        asked["accumulate"] = int(asked["accumulate"])
    if "training" in asked:
        asked["training"] = asked["training"] == "True"
    fault = Fault(
        name,
        f"{row['backend']}: {row['fault']}, {row['quantities']}",
        describe(row["verdict"], row["fault"]),
        f"Seen when: {row['condition']} ({row['separates']}).",
        row["verdict"],
        tuple(row["quantities"].split()),
    )
    (backend,) = _one(row["backend"], sources)
    with _Opened(backend) as bench:
        return _write([(Task(case, case.seq_len, **asked), fault)], bench, backend, out)


def of_case(case: Case, pattern: str, out: Path, sources: Sources | None = None) -> list[Path]:
    """Write a script and report for everything that is wrong with a backend on a case.

    Raises
    ------
    BadInputError
        For a pattern that names no or several backends, one that agrees, or where no script shows the fault here.
    """
    (backend,) = _one(pattern, sources)
    task = Task(case, case.seq_len)
    with _Opened(backend) as bench:
        result = examine(backend.name, task, truth(task), bench.ask(backend.name, task), Matcher(), quick=False)
        if not result["symptoms"]:
            found = f"{backend.name}: {result['verdict']} {result['reason']}".strip()
            raise BadInputError("repro", case.name, "a case on which the backend is wrong", found)
        faults = [
            Fault(
                slug(case.name, backend.name, symptom["fault"]),
                f"{backend.name}: {symptom['fault']}, {' '.join(symptom['quantities'])}",
                describe(symptom["verdict"], symptom["fault"]),
                f"Seen on the case {case.name}.",
                symptom["verdict"],
                tuple(symptom["quantities"]),
            )
            for symptom in result["symptoms"]
        ]
        return _write([(task, fault) for fault in faults], bench, backend, out)


def _one(pattern: str, sources: Sources | None) -> list[Backend]:
    found = [backend for backend in select([pattern], sources) if backend.source == "live"]
    if len(found) != 1:
        names = ", ".join(backend.name for backend in found[:5]) or "none"
        raise BadInputError("repro", "backend", "a pattern that names one backend that runs live here", names)
    return found


class _Opened:
    """A bench of one backend, closed in the end."""

    def __init__(self, backend: Backend) -> None:
        self.bench = Bench(Assignment(0, (backend,), (backend.name,), Sources(), None))

    def __enter__(self) -> Bench:
        return self.bench

    def __exit__(self, *_: object) -> None:
        self.bench.close()


def _write(wanted: Sequence[tuple[Task, Fault]], bench: Bench, backend: Backend, out: Path) -> list[Path]:
    versions = bench.sessions[backend.name].start()
    made = reproduce([Wanted(backend, task, fault, versions) for task, fault in wanted])
    files = {name: text for one in made if one is not None for name, text in one.files.items()}
    if not files:
        raise BadInputError("repro", backend.name, "a script that shows the fault when it is run", "none that did")
    written = []
    try:
        for name, text in files.items():
            with atomic(out / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
            written.append(out / name)
    except OSError as error:
        raise unwritable(out, error) from None
    return written
