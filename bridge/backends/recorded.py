"""Recordings: what a live backend once returned, as plain data, answering in its place where it is not installed.

A folder per backend line holds ``manifest.json`` (framework and its versions, every case's digest, every file's
SHA-256) and a JSON file per case with the answers of all variants; equal arrays are stored once. Numbers are the
shortest decimals that read back to the same bits.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bridge.answers import UNAVAILABLE, Answer, Reply, Task
from bridge.arithmetic import Array
from bridge.backends.base import Session
from bridge.case import Case, atomic
from bridge.errors import BadInputError
from bridge.options import Workaround
from bridge.workers import Worker

FORMAT = 1
SHIPPED = Path(__file__).resolve().parent.parent / "recordings"

Key = tuple[str, str, int, int | None]
"""Variant, case name, sequence length, loss step."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """One folder of recorded answers, checked when opened.

    Attributes
    ----------
    folder : where it lies.
    line : ``framework-version``.
    versions : what the framework said of itself.
    cases : case name -> digest.
    variants : names, in order.
    """

    folder: Path
    line: str
    versions: dict[str, str]
    cases: dict[str, str]
    variants: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path) -> Recording:
        """Read the manifest.

        Raises
        ------
        BadInputError
            When it is missing, corrupt or of another format.
        """
        manifest = _read(folder / "manifest.json")
        try:
            if manifest["format"] != FORMAT:
                raise BadInputError(str(folder / "manifest.json"), "format", str(FORMAT), str(manifest["format"]))
            return cls(
                folder,
                str(manifest["line"]),
                {str(key): str(value) for key, value in manifest["versions"].items()},
                {str(name): str(entry["digest"]) for name, entry in manifest["cases"].items()},
                tuple(map(str, manifest["variants"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInputError(str(folder / "manifest.json"), "", "a recording's manifest", repr(error)) from None

    def replies(self, name: str) -> dict[Key, Reply]:
        """Read one case's answers.

        Raises
        ------
        BadInputError
            When the file is missing, is not the one the manifest was written with, or is corrupt.
        """
        path = self.folder / f"{name}.json"
        try:
            wanted = str(_read(self.folder / "manifest.json")["cases"][name]["sha256"])
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise BadInputError(str(path), "", "a recording's file", error.strerror or str(error)) from None
        except (KeyError, TypeError) as error:
            manifest = str(self.folder / "manifest.json")
            raise BadInputError(manifest, f"cases.{name}", "digest and sha256", f"no {error}") from None
        if found != wanted:
            raise BadInputError(str(path), "", f"the file with SHA-256 {wanted[:12]}...", f"{found[:12]}... (corrupt)")
        document = _read(path)
        try:
            arrays = [_array(item) for item in document["arrays"]]
            return {
                (entry["variant"], name, entry["seq_len"], entry["loss_step"]): _reply(entry["reply"], arrays)
                for entry in document["answers"]
            }
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise BadInputError(str(path), "", "a recording's answers", repr(error)) from None


def find(folders: Iterable[Path] = ()) -> list[Recording]:
    """Open every recording in the given folders, then the shipped ones; the first of a line wins.

    Raises
    ------
    BadInputError
        For a corrupt one, or a given folder that holds none.
    """
    found: dict[str, Recording] = {}
    for folder in folders:
        inside = [folder] if (folder / "manifest.json").exists() else _lines_in(folder)
        if not inside:
            raise BadInputError(str(folder), "", "a folder with recordings", "no manifest.json in it or below it")
        for line in inside:
            recording = Recording.open(line)
            found.setdefault(recording.line, recording)
    for line in _lines_in(SHIPPED):
        recording = Recording.open(line)
        found.setdefault(recording.line, recording)
    return list(found.values())


def _lines_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/manifest.json"))


@dataclasses.dataclass(frozen=True)
class RecordedBackend:
    """A variant of a recorded line."""

    recording: Recording
    variant: str
    about: str
    how_to_get_it: str
    workarounds: tuple[Workaround, ...] = ()
    source: str = "recorded"
    varies: bool = False
    understands: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``framework-version/variant``."""
        return f"{self.recording.line}/{self.variant}"

    @property
    def group(self) -> str:
        """Recordings of one line are read one after another."""
        return str(self.recording.folder)

    def sibling(self, variant: str) -> Callable[[Task], Reply] | None:
        """How to ask another variant of the same recording; None where it has none of that name."""
        if variant not in self.recording.variants:
            return None
        return RecordedSession(dataclasses.replace(self, variant=variant)).ask

    def open(
        self,
        timeout: float | None,
        says: Callable[[str], None] | None = None,
        workers: dict[str, Worker] | None = None,
    ) -> Session:
        """Begin reading."""
        return RecordedSession(self)


class RecordedSession:
    """Answers out of a recording; a case whose digest is not recorded is unavailable."""

    def __init__(self, backend: RecordedBackend) -> None:
        self.backend = backend
        self.read: dict[str, dict[Key, Reply]] = {}

    def start(self) -> dict[str, str]:
        """Return the recorded versions."""
        return self.backend.recording.versions

    def ask(self, task: Task) -> Reply:
        """Look the task up."""
        recording, case = self.backend.recording, task.case
        digest = case.digest()
        name = next((name for name, known in recording.cases.items() if known == digest), None)
        if name is None:
            same = recording.cases.get(case.name)
            what = "another case of that name is" if same else "this case is not"
            reason = f"{what} recorded for {recording.line} (digest {digest[:12]}); {self.backend.how_to_get_it}"
            return Reply.without_values(case.quantities, UNAVAILABLE, reason)
        replies = _cached_replies(recording, name)
        reply = replies.get((self.backend.variant, name, task.seq_len, task.loss_step))
        if reply is None:
            reason = f"the recording of {recording.line} does not hold this run; {self.backend.how_to_get_it}"
            return Reply.without_values(case.quantities, UNAVAILABLE, reason)
        missing = {
            quantity: Answer(verdict=UNAVAILABLE, reason=f"the recording of {recording.line} does not hold it")
            for quantity in case.quantities
            if quantity not in reply.answers
        }
        return dataclasses.replace(reply, answers={**reply.answers, **missing})

    def stop(self) -> None:
        """Do nothing."""


_REPLIES: dict[tuple[Path, str], dict[Key, Reply]] = {}


def _cached_replies(recording: Recording, name: str) -> dict[Key, Reply]:
    key = (recording.folder, name)
    if key not in _REPLIES:
        _REPLIES[key] = recording.replies(name)
    return _REPLIES[key]


# -- writing -----------------------------------------------------------------------------------------------------


def write(
    folder: Path, line: str, versions: Mapping[str, str], cases: Iterable[Case], replies: Mapping[Key, Reply]
) -> Path:
    """Write a recording, each file whole or not at all, the manifest last.

    Raises
    ------
    BadInputError
        When the folder cannot be written.
    """
    try:
        entries = {}
        for case in cases:
            text = json.dumps(_document(case.name, replies), separators=(",", ":"))
            text = text.replace('},{"variant"', '},\n{"variant"').replace('},{"dtype"', '},\n{"dtype"') + "\n"
            with atomic(folder / f"{case.name}.json") as temporary:
                temporary.write_text(text, encoding="utf-8")
            entries[case.name] = {"digest": case.digest(), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        manifest = {
            "format": FORMAT,
            "line": line,
            "versions": dict(versions),
            "cases": entries,
            "variants": list(dict.fromkeys(key[0] for key in replies)),
        }
        with atomic(folder / "manifest.json") as temporary:
            temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInputError(str(folder), "", "a folder that can be written", error.strerror or str(error)) from None
    return folder


def _document(name: str, replies: Mapping[Key, Reply]) -> dict[str, Any]:
    store = _Store()
    answers = [
        {"variant": variant, "seq_len": seq_len, "loss_step": loss_step, "reply": store.reply(reply)}
        for (variant, case, seq_len, loss_step), reply in replies.items()
        if case == name
    ]
    return {"arrays": store.arrays, "answers": answers}


class _Store:
    """Arrays of a file, each once; values refer to them by index."""

    def __init__(self) -> None:
        self.arrays: list[dict[str, Any]] = []
        self.known: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def array(self, array: Array) -> int:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.known:
            self.known[key] = len(self.arrays)
            self.arrays.append({"dtype": array.dtype.str, "shape": list(array.shape), "data": _numbers(array)})
        return self.known[key]

    def values(self, values: Any) -> Any:
        if values is None:
            return None
        if isinstance(values, tuple):
            return [[self.array(array) for array in directions] for directions in values]
        return self.array(values)

    def reply(self, reply: Reply) -> dict[str, Any]:
        answers = {}
        for quantity, answer in reply.answers.items():
            fields = {field.name: getattr(answer, field.name) for field in dataclasses.fields(Answer)}
            fields |= {name: self.values(fields[name]) for name in ("values", "again")}
            answers[quantity] = {
                name: value
                for name, value in fields.items()
                if value not in (None, "", False) or (value == 0 and value is not False)
            }
        start = None if reply.start is None else {name: self.array(array) for name, array in reply.start.items()}
        return {"answers": answers, "notes": list(reply.notes), "start": start}


def _numbers(array: Array) -> list[float | str]:
    return [float(str(value)) if math.isfinite(value) else str(value) for value in array.ravel()]


def _array(item: Mapping[str, Any]) -> Array:
    numbers = np.array([float(value) for value in item["data"]], dtype=np.dtype(item["dtype"]))
    return numbers.reshape(tuple(item["shape"]))


def _reply(plain: Mapping[str, Any], arrays: list[Array]) -> Reply:
    def values(stored: Any) -> Any:
        if stored is None:
            return None
        if isinstance(stored, list):
            return tuple(tuple(arrays[index] for index in directions) for directions in stored)
        return arrays[stored]

    answers = {
        quantity: Answer(**(fields | {name: values(fields.get(name)) for name in ("values", "again")}))
        for quantity, fields in plain["answers"].items()
    }
    start = plain["start"]
    return Reply(
        answers, tuple(plain["notes"]), None if start is None else {name: arrays[i] for name, i in start.items()}
    )


def _read(path: Path) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise BadInputError(str(path), "", "a recording's file", error.strerror or str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadInputError(str(path), "", "a recording's file", f"a corrupt one ({error})") from None
