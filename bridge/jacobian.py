"""The Jacobian map: dL/dx at every input step, for a loss that reads one output step at a time.

All loss steps come from one backward pass, over the sequence repeated along the batch with one-hot heads, where a
framework treats batch elements independently. That is checked against direct passes each time; where it does not
hold, or the backend cannot take the repeated case, each loss step has a pass of its own.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bridge.answers import CRASHED, Answer, Reply, Task, first_line, same_bits
from bridge.arithmetic import Array, Exact
from bridge.backends.base import Backend, Session
from bridge.backends.registry import Sources, select
from bridge.case import Case, load_case
from bridge.errors import BadInputError
from bridge.reference import Tape
from bridge.tolerance import Truth, truth, truths
from bridge.verdicts import AGREES, NO_VALUES, VERDICTS, Judged, judge

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "case", "backend", "loss_step", "timestep", "batch", "row", "value", "reference", "abs_err", "verdict",
)  # fmt: skip
WEIGHT_COLUMNS = (
    "case", "backend", "quantity", "loss_step", "layer", "direction", "row", "col", "value", "reference", "abs_err",
    "verdict",
)  # fmt: skip

SIGNS = ("right", "wrong", "wrongly zero", "wrongly non-zero", "no value")
"""What a block of the map can be; ``JacobianMap.signs`` holds indices into it."""

RIGHT, WRONG, WRONGLY_ZERO, WRONGLY_NONZERO, NO_VALUE = range(len(SIGNS))

MOST_ROWS = 40
"""Longest map that is printed step by step; a longer one is printed in groups of steps."""

_CHUNK_BYTES = 2**27
_RANK = "X0+?o."  # what a group of blocks shows: the first of these in it
MEANS = {
    ".": "zero, rightly",
    "o": "right",
    "X": "wrong",
    "0": "wrongly zero",
    "+": "wrongly non-zero",
    "?": "no value",
}
"""The characters of a printed map."""


@dataclasses.dataclass(frozen=True)
class JacobianMap:
    """dL_s/dx_t of a backend for every loss step s and input step t (both 0-based), judged.

    S = T loss steps, T input steps, B sequences, I features. L_s is the sum of (the case's head, else one) times output
    s; see :meth:`Case.heads`.

    Attributes
    ----------
    case, backend, seq_len : what was measured, and on how many steps of it.
    values, reference, tolerance : array, (S, T, B, I), float64
        NaN in ``values`` where the backend gave none. The tolerance is :func:`bridge.tolerance.truth`'s for each s.
    verdict : array, (S, T, B, I), int8
        Indices into :data:`bridge.verdicts.VERDICTS`.
    how : how many passes were made and, where it was not one, why.
    reason : why values are missing; empty where none are.
    weights : per loss step, the parameters' gradients by quantity, if asked for.
    """

    case: Case
    backend: str
    seq_len: int
    values: Array
    reference: Array
    tolerance: Array
    verdict: Array
    how: str
    reason: str = ""
    weights: tuple[dict[str, Judged], ...] = ()

    @property
    def abs_err(self) -> Array:
        """Distance from the reference, (S, T, B, I); NaN where there is no value."""
        with np.errstate(invalid="ignore"):
            distance: Array = np.abs(self.values - self.reference)
        return distance

    @cached_property
    def signs(self) -> Array:
        """What each block (s, t) is, (S, T); see :func:`signs`."""
        return signs(self.values, self.reference, self.verdict)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per element of every loss step that was answered: ``jacobian.csv``."""
        import pandas as pd

        answered = ~np.isin(self.verdict, [VERDICTS.index(name) for name in NO_VALUES])
        step, time, batch, row = np.nonzero(answered)
        names = pd.Categorical.from_codes(self.verdict[answered], categories=list(VERDICTS))
        return pd.DataFrame(
            {
                "case": self.case.name,
                "backend": self.backend,
                "loss_step": step,
                "timestep": time,
                "batch": batch,
                "row": row,
                "value": self.values[answered],
                "reference": self.reference[answered],
                "abs_err": self.abs_err[answered],
                "verdict": names,
            },
            columns=list(COLUMNS),
        )

    @cached_property
    def weights_frame(self) -> pd.DataFrame:
        """One row per element of the parameters' gradients by loss step; empty unless they were asked for."""
        import pandas as pd

        parts = []
        for step, judged in enumerate(self.weights):
            for quantity, found in judged.items():
                for block in found.blocks:
                    axes = [axis.ravel() for axis in np.indices(block.value.shape)]
                    parts.append(
                        pd.DataFrame(
                            {
                                "case": self.case.name,
                                "backend": self.backend,
                                "quantity": quantity,
                                "loss_step": step,
                                "layer": block.layer,
                                "direction": block.direction,
                                "row": axes[0],
                                "col": pd.array(axes[1] if len(axes) > 1 else [pd.NA] * axes[0].size, dtype="Int64"),
                                "value": block.value.ravel(),
                                "reference": block.reference.ravel(),
                                "abs_err": block.abs_err.ravel(),
                                "verdict": pd.Categorical.from_codes(block.verdict.ravel(), categories=list(VERDICTS)),
                            }
                        )
                    )
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(WEIGHT_COLUMNS))

    def count(self, sign: int) -> int:
        """How many blocks have that sign."""
        return int(np.count_nonzero(self.signs == sign))

    def text(self) -> str:
        """Return the map for people: rows loss step, columns input step, a character per block, and a legend."""
        title = f"dL_s/dx_t of {self.backend or 'the backend'} on {self.case.name}"
        if (self.signs == NO_VALUE).all():
            return f"{title}: none ({self.reason})"
        rows = characters(self.values, self.reference, self.signs)
        size = -(-self.seq_len // MOST_ROWS)
        starts = range(0, self.seq_len, size)
        names = [f"{i}-{min(i + size, self.seq_len) - 1}" if size > 1 else str(i) for i in starts]
        corner = "s\\t"
        margin = max(map(len, [*names, corner]))
        column = max(len(str(starts[-1])), 1)
        lines = [f"{title}: rows loss step s, columns input step t"]
        if size > 1:
            lines.append(f"each row and column stands for {size} steps and shows the gravest of its blocks")
        lines.append(f"{corner:>{margin}} " + " ".join(f"{i:>{column}}" for i in starts))
        for name, first in zip(names, starts, strict=True):
            cells = []
            for other in starts:
                group = {c for row in rows[first : first + size] for c in row[other : other + size]}
                cells.append(next(c for c in _RANK if c in group))
            lines.append(f"{name:>{margin}} " + " ".join(f"{c:>{column}}" for c in cells))
        used = {c for row in rows for c in row}
        shown = [f"{c} {means}" for c, means in MEANS.items() if c != "?" or c in used]
        lines.append("   ".join(shown) + (f" ({self.reason})" if "?" in used and self.reason else ""))
        lines.append(self.how)
        return "\n".join(lines)


def signs(values: Array, reference: Array, verdict: Array) -> Array:
    """Tell what each block of a map is, as int8 indices into :data:`SIGNS`, (S, T).

    *wrongly zero*: all zero where the reference exceeds the tolerance. *wrongly non-zero*: beyond the tolerance
    where the reference is exactly zero. *no value*: not repeatable, nothing, or no answer.

    Parameters
    ----------
    values, reference, verdict : array, (S, T, B, I)
        As in :class:`JacobianMap`.
    """
    wrong = (verdict != VERDICTS.index(AGREES)).any(axis=(2, 3))
    found = np.where(wrong, WRONG, RIGHT).astype(np.int8)
    found[wrong & (values == 0).all(axis=(2, 3))] = WRONGLY_ZERO
    found[wrong & (reference == 0).all(axis=(2, 3))] = WRONGLY_NONZERO
    finite = np.isin(verdict, [VERDICTS.index(name) for name in ("agrees", "disagrees")])
    found[wrong & np.isnan(values).any(axis=(2, 3)) & finite.all(axis=(2, 3))] = NO_VALUE  # Zygote's nothing
    missing = [VERDICTS.index(name) for name in ("not repeatable", *NO_VALUES)]
    found[np.isin(verdict, missing).any(axis=(2, 3))] = NO_VALUE
    return found


def characters(values: Array, reference: Array, found: Array) -> list[str]:
    """Write each loss step's blocks as one string, a character of :data:`MEANS` per input step.

    Parameters
    ----------
    values, reference : array, (S, T, B, I)
    found : array, (S, T)
        Their :func:`signs`.
    """
    zero = (reference == 0).all(axis=(2, 3)) & (values == 0).all(axis=(2, 3))
    codes = np.where((found == RIGHT) & zero, -1, found)
    return ["".join({-1: "."}.get(int(c)) or "oX0+?"[int(c)] for c in row) for row in codes]


def jacobian_map(
    case: Case | str | os.PathLike[str],
    backend: str | Backend,
    seq_len: int | None = None,
    *,
    weights: bool = False,
    timeout: float | None = None,
    sources: Sources | None = None,
) -> JacobianMap:
    """Measure and judge dL_s/dx_t for every loss step s and input step t.

    Parameters
    ----------
    case : Case, name or path
        With ``x`` among what it requests; the rest of the request is kept, since a fault may depend on it.
    backend : pattern or backend
        A pattern must match exactly one.
    seq_len : int, optional
        Steps of the case to run; all by default.
    weights : bool
        Give the parameters' gradients by loss step too, which takes a pass per loss step.
    timeout : float, optional
        Seconds one pass may take.
    sources : Sources, optional
        As in :func:`bridge.compare`.

    Returns
    -------
    JacobianMap
        Where the backend gives no dx, one without values, whose ``reason`` says why.

    Raises
    ------
    BadInputError
        For a case that does not request ``x`` (or, with ``weights``, ``params``), a length it does not have, or a
        pattern that does not match exactly one backend.
    """
    from threadpoolctl import threadpool_limits

    case = case if isinstance(case, Case) else load_case(case)
    _check(case, seq_len, weights)
    chosen = the_one(backend, sources)
    session = chosen.open(timeout)
    try:
        with threadpool_limits(limits=1):  # beside a worker, two busy thread pools are far slower than one thread each
            return measure(session, case, seq_len, backend=chosen.name, weights=weights)
    finally:
        session.stop()


def the_one(backend: str | Backend, sources: Sources | None) -> Backend:
    """Return the backend that a pattern matches, which must be exactly one.

    Raises
    ------
    BadInputError
        When it matches none or several.
    """
    chosen = select([backend], sources)
    if len(chosen) != 1:
        names = ", ".join(one.name for one in chosen[:4]) + (", ..." if len(chosen) > 4 else "")
        raise BadInputError("backend", "", "a pattern that matches one backend", f"{backend!r}, which matches {names}")
    return chosen[0]


def measure(
    session: Session, case: Case, seq_len: int | None = None, *, backend: str = "", weights: bool = False
) -> JacobianMap:
    """Measure and judge the map through an open session; see :func:`jacobian_map`.

    Raises
    ------
    BadInputError
        As :func:`jacobian_map`.
    """
    length = _check(case, seq_len, weights)
    passes = _Passes(session.ask, case, length, weights)
    replies, how = passes.run()
    shape = (length, length, case.batch, case.input_size)
    arrays = {name: np.full(shape, np.nan) for name in ("value", "reference", "tolerance")}
    codes = np.zeros(shape, np.int8)
    reasons: list[str] = []
    judged_weights: list[dict[str, Judged]] = []
    for step, reply in enumerate(replies):
        known = passes.truth(step, reply.start)
        judged = _judged("dx", reply, known)
        if judged.reason:
            reasons.append(judged.reason)
        if judged.blocks:
            (block,) = judged.blocks
            for name, array in arrays.items():
                array[step] = getattr(block, name)
            codes[step] = block.verdict
        else:
            arrays["reference"][step], arrays["tolerance"][step] = known.expected("dx")[0], known.tolerance("dx")[0]
            codes[step] = VERDICTS.index(judged.verdict)
        if weights:
            quantities = [name for name in case.quantities if name.startswith(("dweight", "dbias"))]
            judged_weights.append({name: _judged(name, reply, known) for name in quantities})
    reason = "; ".join(dict.fromkeys(reasons))
    return JacobianMap(
        case, backend, length, arrays["value"], arrays["reference"], arrays["tolerance"], codes, how, reason,
        tuple(judged_weights),
    )  # fmt: skip


def reference_map(case: Case, seq_len: int | None = None) -> Array:
    """Return the reference's dL_s/dx_t alone, (S, T, B, I), float64: one forward pass, all loss steps as replicas.

    Raises
    ------
    BadInputError
        For a length that the case does not have.
    """
    length = case.check_length(seq_len)
    tape = Tape(case, length, Exact())
    result = np.empty((length, length, case.batch, case.input_size))
    for steps in _chunks(case, length):
        heads = [tape.cotangents(*case.heads(length, step))[0] for step in steps]
        pulled = tape.pull(np.concatenate(heads, axis=2), parameters=False)
        result[steps] = np.moveaxis(pulled["dx"], 1, 0)
    return result


def _check(case: Case, seq_len: int | None, weights: bool) -> int:
    for name, needed in (("x", True), ("params", weights)):
        if needed and name not in case.requested:
            found = ", ".join(case.requested)
            raise BadInputError(f"case {case.name!r}", "requested", f"{name} among what a map is asked for", found)
    return case.check_length(seq_len)


def _chunks(case: Case, length: int) -> Iterator[list[int]]:
    """Split the loss steps so that one chunk's arrays stay within bounds."""
    width = case.hidden_size * case.directions * case.layers * case.gates * 4 + case.input_size
    at_once = max(1, _CHUNK_BYTES // (8 * length * case.batch * width))
    for first in range(0, length, at_once):
        yield list(range(first, min(first + at_once, length)))


def _judged(quantity: str, reply: Reply, known: Truth) -> Judged:
    try:
        return judge(quantity, reply.answers[quantity], known, reply.notes)
    except KeyError:
        return Judged(CRASHED, f"the backend did not answer for {quantity}")
    except ValueError as error:
        return Judged(CRASHED, first_line(str(error)))


class _Passes:
    """Gets the replies for every loss step, in as few passes as the backend allows."""

    def __init__(self, ask: Callable[[Task], Reply], case: Case, length: int, weights: bool) -> None:
        self.ask, self.case, self.length, self.weights = ask, case, length, weights

    @cached_property
    def truths(self) -> list[Truth]:
        tasks = [Task(self.case, self.length, step) for step in range(self.length)]
        return truths(tasks, parameters=self.weights)

    def truth(self, step: int, start: Any = None) -> Truth:
        if start is not None:  # a carried state: judged against what the backend really started from
            return truth(Task(self.case.replace(**start), self.length, step))
        return self.truths[step]

    def run(self) -> tuple[list[Reply], str]:
        """Return a reply per loss step, and how they were got."""
        steps = range(self.length)
        ends = sorted({0, self.length - 1})
        direct = {step: self.ask(Task(self.case, self.length, step)) for step in ends}
        if all(_dx(reply).verdict for reply in direct.values()):  # nothing to be had: not asked again T times
            return [direct[0]] * self.length, "no pass gave dx"
        why = "as asked"
        if not self.weights and len(ends) < self.length:
            batched = self._batched()
            why = self._unlike(batched, direct) if isinstance(batched, list) else batched
            if isinstance(batched, list) and not why:
                passes = sum(1 for _ in _chunks(self.case, self.length))
                several = "one backward pass" if passes == 1 else f"{passes} backward passes"
                how = f"{several} over the sequence repeated along the batch, one-hot heads; first and last loss step"
                return batched, f"{how} checked directly"
        replies = [direct[step] if step in direct else self.ask(Task(self.case, self.length, step)) for step in steps]
        return replies, f"a pass per loss step ({self.length})" + (f": {why}" if self.length > 2 else "")

    def _batched(self) -> list[Reply] | str:
        """Repeat the sequence along the batch: element s*B + b is sequence b with loss step s. Else say why not."""
        case, size = self.case, self.case.batch
        replies: list[Reply] = []
        for steps in _chunks(case, self.length):
            reply = self.ask(Task(repeated(case, self.length, steps), self.length))
            answer = _dx(reply)
            if answer.verdict:
                return f"the batched case is {answer.verdict} ({answer.reason})"
            if answer.nothing or reply.start is not None:
                return "the backend carries a state, or gives nothing, in the batched case"
            wanted = (self.length, len(steps) * size, case.input_size)
            if np.shape(answer.values) != wanted:
                return f"the batched case gave shape {np.shape(answer.values)} for {wanted}"
            for index, _ in enumerate(steps):
                part = slice(index * size, (index + 1) * size)
                value = answer.values[:, part]
                again = None if answer.again is None else answer.again[:, part]
                again = None if same_bits(value, again) else again
                one = dataclasses.replace(answer, values=value, again=again)
                replies.append(Reply({"dx": one}, reply.notes))
        return replies

    def _unlike(self, batched: Sequence[Reply], direct: dict[int, Reply]) -> str:
        """Say where batched and direct passes differ; empty where they agree within both tolerances."""
        for step, reply in direct.items():
            ours, theirs = batched[step].answers["dx"], _dx(reply)
            if theirs.verdict or theirs.nothing or reply.start is not None:
                return f"loss step {step} alone is answered otherwise than in the batch"
            if ours.again is not None or theirs.again is not None:
                return "not repeatable, so the batch cannot be checked"
            if ours.values.shape != theirs.values.shape:
                return f"loss step {step} alone gave shape {theirs.values.shape}"
            a, b = (np.asarray(values, np.float64) for values in (ours.values, theirs.values))
            # A wrong value may be larger than the right one, and its rounding with it.
            size = np.maximum(np.abs(a), np.abs(b))
            slack = 2 * self.truth(step).tolerance("dx")[0] + 16 * np.finfo(self.case.dtype).eps * size
            with np.errstate(invalid="ignore"):
                bad = (np.abs(a - b) > slack) | (np.isnan(a) != np.isnan(b)) | (np.isinf(a) != np.isinf(b))
            if bad.any():
                t, row, column = (int(i) for i in np.argwhere(bad)[0])
                return (
                    f"batch elements are not independent: loss step {step}, dx[{t}, {row}, {column}] is "
                    f"{a[t, row, column]:.9g} in the batch and {b[t, row, column]:.9g} alone"
                )
        return ""


def repeated(case: Case, seq_len: int, steps: Sequence[int]) -> Case:
    """Return the case with its batch repeated per loss step: element k*B + b is sequence b, its loss ``steps[k]``.

    Raises
    ------
    BadInputError
        For a length or loss step that the case does not have.
    """
    times = (1, len(steps), 1)
    return case.replace(
        x=np.tile(case.x[:seq_len], times),
        h0=np.tile(case.h0, times),
        c0=None if case.c0 is None else np.tile(case.c0, times),
        head=np.concatenate([case.heads(seq_len, step)[0] for step in steps], axis=1),
        head_hn=None,
        head_cn=None,
        seq_lens=(),
    )


def _dx(reply: Reply) -> Answer:
    return reply.answers.get("dx") or Answer(verdict=CRASHED, reason="the backend did not answer for dx")
