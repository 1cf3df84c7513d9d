"""What a backend is asked about a case, and what it says: one answer per quantity, before anybody judged it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bridge.arithmetic import Array
from bridge.case import Case, pack, unpack

UNSUPPORTED, CRASHED, TIMED_OUT, UNAVAILABLE = "unsupported", "crashed", "timed out", "unavailable"


@dataclasses.dataclass(frozen=True)
class Task:
    """What a backend is asked at once.

    Attributes
    ----------
    case : the case.
    seq_len : steps of it to run.
    loss_step : the 0-based output step that alone makes the loss, or None for the case's whole head.
    accumulate : how many times forward and backward are run, gradients added up (MXNet's ``grad_req='add'``);
        more than once is only asked of backends that can.
    """

    case: Case
    seq_len: int
    loss_step: int | None = None
    accumulate: int = 1

    def to_plain(self) -> dict[str, Any]:
        """Return the task without NumPy objects."""
        return {
            "case": self.case.to_plain(),
            "seq_len": self.seq_len,
            "loss_step": self.loss_step,
            "accumulate": self.accumulate,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Task:
        """Inverse of :meth:`to_plain`."""
        return cls(Case.from_plain(plain["case"]), plain["seq_len"], plain["loss_step"], plain["accumulate"])

    def heads(self) -> tuple[Array, Array | None, Array | None]:
        """Head gradients, as :meth:`Case.heads` gives them."""
        return self.case.heads(self.seq_len, self.loss_step)


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
