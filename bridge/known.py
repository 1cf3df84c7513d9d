"""Accepted findings: a file of what is known to be wrong, so that a run fails on what is new alone.

::

    [[known]]
    fault = "recurrent-term-dropped"        # as findings.csv writes it
    comment = "apache/mxnet#21143, open"    # why it is accepted
    backend = "mxnet-*/*-native"            # default: every backend
    case = "mxnet-*"                        # default: every case
    quantities = ["dx", "dh0"]              # default: all

``fault``, ``backend`` and ``case`` take shell wildcards; ``fault`` without them also stands for the same fault with any
detail in parentheses. A disagreement that no fault explains is called ``unexplained``.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bridge.errors import BadInputError
from bridge.faults import UNEXPLAINED
from bridge.verdicts import SHORT


class Found(NamedTuple):
    """One wrong quantity; ``case`` is empty for a sweep's."""

    case: str
    backend: str
    quantity: str
    fault: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """One accepted finding.

    Attributes
    ----------
    fault, backend, case : patterns; see the module.
    quantities : those accepted; empty for all.
    comment : why.
    """

    fault: str
    comment: str
    backend: str = "*"
    case: str = "*"
    quantities: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "" if (self.backend, self.case) == ("*", "*") else f" of {self.backend} on {self.case}"
        return f"{self.fault}{where}{' in ' + ' '.join(self.quantities) if self.quantities else ''} ({self.comment})"

    def looks_at(self, case: str, backend: str, quantity: str) -> bool:
        """Whether it is about that quantity of that backend on that case."""
        return (
            fnmatch.fnmatchcase(backend, self.backend)
            and (not case or fnmatch.fnmatchcase(case, self.case))
            and (not self.quantities or quantity in self.quantities)
        )

    def accepts(self, found: Found) -> bool:
        """Whether it is about that finding."""
        named = fnmatch.fnmatchcase(found.fault, self.fault) or found.fault.startswith(f"{self.fault} (")
        return named and self.looks_at(found.case, found.backend, found.quantity)


@dataclasses.dataclass(frozen=True)
class Sorted:
    """A run's findings against the accepted ones.

    Attributes
    ----------
    new : what no entry accepts.
    accepted : what one does.
    gone : entries that the run looked at and that showed nothing.
    """

    new: tuple[Found, ...]
    accepted: tuple[Found, ...]
    gone: tuple[Entry, ...]

    @property
    def lines(self) -> list[str]:
        """What to tell the user."""
        found = [f"known: {len(self.accepted)} accepted, {len(self.new)} new (case x backend x quantity)"]
        for one in self.new:
            found.append(f"new: {one.backend}, {one.quantity}{one.case and f' on {one.case}'}: {one.fault}")
        advice = "take it out of the file, or narrow its patterns to what this run looked at"
        return found + [f"known, and gone from this run: {entry}: {advice}" for entry in self.gone]


def load_known(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """Read a file of accepted findings.

    Raises
    ------
    BadInputError
        Naming file, key, expected and found.
    """
    import msgspec

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    where = os.fspath(path)
    entry = msgspec.defstruct(
        "Known",
        [
            ("fault", str),
            ("comment", str),
            ("backend", str, "*"),
            ("case", str, "*"),
            ("quantities", tuple[str, ...], ()),
        ],
        forbid_unknown_fields=True,
        kw_only=True,
    )
    whole = msgspec.defstruct("KnownFile", [("known", list[entry])], forbid_unknown_fields=True)  # type: ignore[valid-type]
    try:
        document = tomllib.loads(Path(where).read_text(encoding="utf-8"))
        read = msgspec.convert(document, whole).known  # type: ignore[attr-defined]
    except OSError as error:
        raise BadInputError(where, "", "a readable file", error.strerror or str(error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInputError(where, "", "TOML", str(error)) from None
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        raise BadInputError(where, place.strip("`."), "[[known]] entries as docs/routine.md describes", text) from None
    entries = tuple(Entry(**msgspec.structs.asdict(one)) for one in read)
    for number, one in enumerate(entries):
        if not one.comment.strip():
            raise BadInputError(where, f"known[{number}].comment", "why it is accepted", "an empty text")
        strange = next((name for name in one.quantities if name not in SHORT), None)
        if strange is not None:
            raise BadInputError(where, f"known[{number}].quantities", f"names out of {', '.join(SHORT)}", repr(strange))
    return entries


def sort(
    entries: Sequence[Entry], findings: Iterable[Mapping[str, Any]], looked: Iterable[tuple[str, str, str]]
) -> Sorted:
    """Sort findings into new and accepted, and find the entries that have gone.

    Parameters
    ----------
    entries : the accepted findings.
    findings : rows with ``backend``, ``quantities`` (separated by spaces), ``fault`` and, where there is one, ``case``;
        those of ``findings.csv``, also of a sweep, whose cases are random and fit every ``case`` pattern.
    looked : (case, backend, quantity) that gave values; an entry about none of them has not gone, nobody looked.
    """
    new: list[Found] = []
    accepted: list[Found] = []
    used: set[int] = set()
    for row in findings:
        fault = row["fault"] if isinstance(row["fault"], str) and row["fault"] else UNEXPLAINED
        for quantity in str(row["quantities"]).split():
            found = Found(str(row.get("case", "")), str(row["backend"]), quantity, fault)
            fitting = {number for number, entry in enumerate(entries) if entry.accepts(found)}
            used |= fitting
            (accepted if fitting else new).append(found)
    places = list(looked)
    unused = [entry for number, entry in enumerate(entries) if number not in used]
    gone = tuple(entry for entry in unused if any(entry.looks_at(*place) for place in places))
    return Sorted(tuple(new), tuple(accepted), gone)
