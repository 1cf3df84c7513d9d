"""From a backend's answer and the truth to verdicts, element by element and for the quantity as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bridge.answers import CRASHED, TIMED_OUT, UNAVAILABLE, UNSUPPORTED, Answer, Reply, Task, blocks, first_line
from bridge.arithmetic import Array
from bridge.tolerance import Truth, swamped

AGREES, DISAGREES, NOT_FINITE, NOT_REPEATABLE = "agrees", "disagrees", "not finite", "not repeatable"
VERDICTS = (
    AGREES,
    DISAGREES,
    NOT_FINITE,
    NOT_REPEATABLE,
    UNSUPPORTED,
    UNAVAILABLE,
    CRASHED,
    TIMED_OUT,
)
"""All verdicts; in a table always one of these, never a blank."""

WRONG = VERDICTS[1:4]
"""Verdicts of a backend whose values cannot be relied on."""

NO_VALUES = VERDICTS[4:]
"""Verdicts of a backend that gave no values."""

SHORT = {"dweight_ih": "dW_ih", "dweight_hh": "dW_hh", "dbias_ih": "db_ih", "dbias_hh": "db_hh"} | {
    quantity: quantity for quantity in ("y", "dx", "dh0", "dc0")
}
"""Quantities as tables for people write them."""

_CODES = {verdict: code for code, verdict in enumerate(VERDICTS)}
_GRAVITY = (NOT_REPEATABLE, NOT_FINITE, DISAGREES, AGREES, UNSUPPORTED)


@dataclasses.dataclass(frozen=True)
class Block:
    """One array of a judged quantity; all arrays have one shape.

    Attributes
    ----------
    layer, direction : where it belongs, None for sequences and stacked states.
    value : the backend's, NaN where it gave none.
    reference, tolerance, abs_err, rel_err, ulps : float64; ``ulps`` in units of the backend's dtype at the reference.
    verdict : codes into :data:`VERDICTS`.
    """

    layer: int | None
    direction: int | None
    value: Array
    reference: Array
    tolerance: Array
    abs_err: Array
    rel_err: Array
    ulps: Array
    verdict: Array


@dataclasses.dataclass(frozen=True)
class Judged:
    """A quantity with its verdict.

    Attributes
    ----------
    verdict : one of :data:`VERDICTS`.
    reason : a line beside it; empty for a plain ``agrees``.
    blocks : the elements; empty where there were no values to judge.
    batch_summed : the quantity's batch axis is summed away.
    first, again : both values, where not repeatable.
    nothing : the framework said that there is no gradient.
    """

    verdict: str
    reason: str
    blocks: tuple[Block, ...] = ()
    batch_summed: bool = False
    first: tuple[Array, ...] = ()
    again: tuple[Array, ...] = ()
    nothing: bool = False

    def count(self, verdict: str) -> int:
        """How many elements have that verdict."""
        return sum(int(np.count_nonzero(block.verdict == _CODES[verdict])) for block in self.blocks)

    @property
    def has_values(self) -> bool:
        """Whether the backend gave values that mean something on their own."""
        return bool(self.blocks) and self.verdict != NOT_REPEATABLE and not self.nothing


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A backend's judged answer to a task, with the truth it was judged by."""

    backend: str
    task: Task
    quantities: Mapping[str, Judged]
    truth: Truth


def judge_reply(reply: Reply, truth: Truth) -> dict[str, Judged]:
    """Judge every answer of a reply; values of a wrong shape are a crash that names both shapes."""
    verdicts = {}
    for quantity, answer in reply.answers.items():
        try:
            verdicts[quantity] = judge(quantity, answer, truth, reply.notes)
        except ValueError as error:
            verdicts[quantity] = Judged(CRASHED, first_line(str(error)))
    return verdicts


def judge(quantity: str, answer: Answer, truth: Truth, notes: Sequence[str] = ()) -> Judged:
    """Judge one answer against the truth.

    Raises
    ------
    ValueError
        When the backend's values do not have the reference's shape, naming both.
    """
    said = "; ".join(filter(None, [answer.reason, *notes]))
    if answer.verdict:
        return Judged(answer.verdict, said)
    expected = truth.expected(quantity, answer.batch_summed)
    tolerance = truth.tolerance(quantity, answer.batch_summed)
    places = [(layer, direction) for layer, direction, _ in blocks(truth.reference[quantity])]
    repeatable = answer.again is None
    if answer.nothing:
        values = [np.full(array.shape, np.nan) for array in expected]
    else:
        values = [np.asarray(array, dtype=np.float64) for _, _, array in blocks(answer.values)]
    for value, wanted in zip(values, expected, strict=True):
        if value.shape != wanted.shape:
            raise ValueError(f"{quantity}: shape {wanted.shape} expected, found {value.shape}")
    judged = tuple(
        _block(place, value, reference, slack, answer, repeatable, truth.dtype)
        for place, value, reference, slack in zip(places, values, expected, tolerance, strict=True)
    )
    verdict = next(name for name in _GRAVITY if any((block.verdict == _CODES[name]).any() for block in judged))
    reasons = [_reason(verdict, judged, answer, truth.dtype)] if verdict != AGREES else []
    if verdict == AGREES and swamped(expected, tolerance):
        reasons.append("this case cannot tell: its rounding noise is as large as the gradient")
    if verdict == AGREES and answer.nothing:
        reasons.append("nothing returned, and the truth is zero")
    if answer.inexpressible:
        count = sum(int(np.count_nonzero(block.verdict == _CODES[UNSUPPORTED])) for block in judged)
        reasons.append(f"{count} elements the framework cannot express")
    reason = "; ".join(filter(None, [*reasons, said]))
    if repeatable:
        return Judged(verdict, reason, judged, answer.batch_summed, nothing=answer.nothing)
    again = tuple(np.asarray(array, np.float64) for _, _, array in blocks(answer.again))
    return Judged(verdict, reason, judged, answer.batch_summed, tuple(values), again)


def _block(
    place: tuple[int | None, int | None],
    value: Array,
    reference: Array,
    tolerance: Array,
    answer: Answer,
    repeatable: bool,
    dtype: str,
) -> Block:
    with np.errstate(all="ignore"):
        compared = np.zeros_like(value) if answer.nothing else value
        abs_err = np.abs(compared - reference)
        rel_err = np.where(abs_err == 0, 0.0, abs_err / np.abs(reference))
        spacing = np.spacing(np.abs(reference).astype(dtype)).astype(np.float64)
        ulps = np.where(abs_err == 0, 0.0, abs_err / spacing)
    verdict = np.where(abs_err <= tolerance, _CODES[AGREES], _CODES[DISAGREES]).astype(np.int8)
    if answer.inexpressible:
        verdict[np.isnan(value)] = _CODES[UNSUPPORTED]
    elif not answer.nothing:
        verdict[~np.isfinite(value)] = _CODES[NOT_FINITE]
    if not repeatable:
        verdict[:] = _CODES[NOT_REPEATABLE]
        value = np.full_like(value, np.nan)
    if not repeatable or answer.nothing:
        abs_err, rel_err, ulps = (np.full_like(value, np.nan) for _ in range(3))
    return Block(*place, value, reference, tolerance, abs_err, rel_err, ulps, verdict)


def _reason(verdict: str, judged: Sequence[Block], answer: Answer, dtype: str) -> str:
    if verdict == NOT_REPEATABLE:
        return "the same call twice gave different bits"
    if verdict == NOT_FINITE:
        top = max(float(np.max(np.abs(block.reference))) for block in judged)
        if not np.isfinite(top):
            return "NaN or infinite; the reference overflows too"
        fits = top <= np.finfo(dtype).max
        return f"NaN or infinite; the reference is {'finite' if fits else f'beyond the range of {dtype}'}"
    if answer.nothing:
        return "nothing: the framework returned no gradient, and the truth is not zero"
    return f"differs by more than rounding in {dtype} explains" if verdict == DISAGREES else ""
