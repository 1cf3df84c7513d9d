"""What a backend is asked about a case, and what it says: one answer per quantity, before anybody judged it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bridge.arithmetic import Array
from bridge.case import Case, pack, unpack

SPECIAL = ("accumulate", "training", "malformed")
"""Fields of :class:`Task` that not every backend understands."""

WROTE_INTO = "wrote into its input"
"""How a note on an input that a framework wrote into goes on, after the framework and before the input's name."""

UNSUPPORTED, CRASHED, TIMED_OUT, UNAVAILABLE = "unsupported", "crashed", "timed out", "unavailable"


@dataclasses.dataclass(frozen=True)
class Task:
    """What a backend is asked at once.

    Attributes
    ----------
    case : the case.
    seq_len : steps of it to run.
    loss_step : the 0-based output step that alone makes the loss, or None for the case's whole head.
    accumulate : how many times forward and backward are run, gradients added up (MXNet's ``grad_req='add'``).
    training : whether the pass is recorded in training mode; without dropout it makes no difference to the truth.
    malformed : an array that is handed over one longer than it should be, along an axis (``head[0]``), or empty; a
        backend that then returns values accepted wrong input without a word.

    The last three are only asked of backends that say they understand them; see :class:`bridge.backends.base.Backend`.
    """

    case: Case
    seq_len: int
    loss_step: int | None = None
    accumulate: int = 1
    training: bool = True
    malformed: str = ""

    def to_plain(self) -> dict[str, Any]:
        """Return the task without NumPy objects."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return plain | {"case": self.case.to_plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Task:
        """Inverse of :meth:`to_plain`."""
        return cls(**(dict(plain) | {"case": Case.from_plain(plain["case"])}))

    @property
    def special(self) -> tuple[str, ...]:
        """The fields that a backend must understand to be asked this."""
        return tuple(name for name in SPECIAL if getattr(self, name) != Task.__dataclass_fields__[name].default)

    @property
    def asked(self) -> str:
        """How a backend is asked, where that is not the plain way: ``accumulate=2``, ``malformed=head[0]``, ..."""
        return " ".join(f"{name}={getattr(self, name)}" for name in self.special)

    def heads(self) -> tuple[Array, Array | None, Array | None]:
        """Head gradients, as :meth:`Case.heads` gives them."""
        return self.case.heads(self.seq_len, self.loss_step)

    def inputs(self) -> tuple[dict[str, Array], list[Array | None]]:
        """Input and states by name, and head gradients, as a framework is handed them: malformed where asked for."""
        case = self.case
        given = {"x": case.x[: self.seq_len], "h0": case.h0} | ({} if case.c0 is None else {"c0": case.c0})
        heads = list(self.heads())
        if self.malformed:
            name, axis = self.malformed.rstrip("]").split("[")
            if name == "head":
                heads[0] = _longer(self.heads()[0], int(axis))
            else:
                given[name] = _longer(given[name], int(axis))
        return given, heads

    def alone(self) -> Case:
        """Return a case that says the same on its own: the first steps of ``x``, with the loss step as its head."""
        case, length = self.case, self.seq_len
        changes: dict[str, Any] = {"head": case.head if isinstance(case.head, str) else case.head[:length]}
        if self.loss_step is not None:
            changes = dict(zip(("head", "head_hn", "head_cn"), self.heads(), strict=True))
        return case.replace(x=case.x[:length], seq_lens=(), **changes)


@dataclasses.dataclass(frozen=True)
class Answer:
    """One quantity's values, or why there are none.

    Attributes
    ----------
    values : array, nested tuples ``[layer][direction]`` of arrays (NaN where the framework cannot express an
        element), or None.
    again : the values of a second, identical call where its bits differ; the quantity is then not repeatable.
    verdict : set only where there is nothing to judge: ``unsupported``, ``crashed``, ``timed out``, ``unavailable``.
    reason : a line beside it; may accompany values too.
    nothing : the framework itself said that there is no gradient (Zygote's ``nothing``), which is not a zero.
    batch_summed : a state's gradient that the framework sums over the batch, shape (layers * D, 1, H).
    inexpressible : elements of ``values`` marked NaN are not the framework's, but beyond what it can express.
    """

    values: Any = None
    again: Any = None
    verdict: str = ""
    reason: str = ""
    nothing: bool = False
    batch_summed: bool = False
    inexpressible: bool = False

    def to_plain(self) -> dict[str, Any]:
        """Return the answer without NumPy objects, for another process or a file."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return plain | {name: _pack(plain[name]) for name in ("values", "again")}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Answer:
        """Inverse of :meth:`to_plain`."""
        return cls(**(dict(plain) | {name: _unpack(plain[name]) for name in ("values", "again")}))


@dataclasses.dataclass(frozen=True)
class Reply:
    """All answers to one task.

    Attributes
    ----------
    answers : quantity -> answer.
    notes : lines that concern all of them (an input that the framework wrote into, ...).
    start : the states ``h0`` (and ``c0``) that the framework really started from, where they are not the case's.
    """

    answers: dict[str, Answer]
    notes: tuple[str, ...] = ()
    start: dict[str, Array] | None = None

    def to_plain(self) -> dict[str, Any]:
        """Return the reply without NumPy objects."""
        start = None if self.start is None else {name: pack(array) for name, array in self.start.items()}
        answers = {name: answer.to_plain() for name, answer in self.answers.items()}
        return {"answers": answers, "notes": self.notes, "start": start}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Reply:
        """Inverse of :meth:`to_plain`."""
        start = plain["start"]
        return cls(
            {name: Answer.from_plain(answer) for name, answer in plain["answers"].items()},
            tuple(plain["notes"]),
            None if start is None else {name: unpack(packed) for name, packed in start.items()},
        )

    @classmethod
    def without_values(cls, quantities: tuple[str, ...], verdict: str, reason: str) -> Reply:
        """One verdict and reason for every quantity."""
        return cls({name: Answer(verdict=verdict, reason=reason) for name in quantities})


def blocks(values: Any) -> Iterator[tuple[int | None, int | None, Array]]:
    """Yield ``(layer, direction, array)``; layer and direction are None for what has none."""
    if isinstance(values, tuple):
        for layer, directions in enumerate(values):
            for direction, array in enumerate(directions):
                yield layer, direction, array
    else:
        yield None, None, values


def same_bits(first: Any, second: Any) -> bool:
    """Whether two values agree to the last bit."""
    if first is None or second is None:
        return first is second
    pairs = list(zip(blocks(first), blocks(second), strict=True))
    return all(
        a.shape == b.shape and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
        for (_, _, a), (_, _, b) in pairs
    )


def first_line(error: BaseException | str) -> str:
    """Return the first non-empty line of an error's text, with its type, at most 300 characters."""
    text = str(error)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if isinstance(error, BaseException) and not line.startswith(type(error).__name__):
        line = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return line if len(line) <= 300 else line[:297] + "..."


def _longer(array: Array, axis: int) -> Array:
    return np.concatenate([array, np.take(array, [-1], axis)], axis)


def _pack(values: Any) -> Any:
    if values is None:
        return None
    if isinstance(values, tuple):
        return {"blocks": tuple(tuple(pack(array) for array in directions) for directions in values)}
    return {"array": pack(values)}


def _unpack(plain: Any) -> Any:
    if plain is None:
        return None
    if "array" in plain:
        return unpack(plain["array"])
    return tuple(tuple(unpack(packed) for packed in directions) for directions in plain["blocks"])
