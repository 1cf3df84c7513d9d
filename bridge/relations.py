"""Properties of a right gradient that need no reference: they hold for any framework's, whatever its rounding.

Each relation computes the same numbers in two ways and compares them. How far rounding may separate the two is
measured on the backend itself, since no reference is there to ask. A difference within a few eps of its time step or
weight block is rounding. Beyond that, the backend is run on copies of the case whose every number is multiplied by
``1 + 16 u U(-1, 1)``, u the unit roundoff: the rms deviation of its answers shows how it amplifies rounding, saturated
and chaotic cases included. The perturbation is larger than rounding so that a rare jump (a tanh that rounds to 1) is
seen in few copies. What no perturbation of the input shows, that ``1 - h**2`` is known to eps only, has a term of its
own, made from the sizes of heads and weights. ``benchmarks/relations.py`` measures how far right backends stay below.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bridge.answers import UNAVAILABLE, UNSUPPORTED, Answer, Reply, Task, blocks
from bridge.arithmetic import Array
from bridge.backends.base import Backend
from bridge.backends.registry import Sources, select
from bridge.case import PARAM_NAMES, REQUESTABLE, Case, Weights, load_case
from bridge.errors import BadInputError

if TYPE_CHECKING:
    import pandas as pd

HOLDS, VIOLATED, NOT_APPLICABLE, CANNOT_TELL = "holds", "violated", "not applicable", "cannot tell"

COLUMNS = ("case", "backend", "relation", "verdict", "quantity", "where", "worst", "allowed", "reason")

SAMPLES = 5
"""Perturbed copies per task; made only where a difference is more than a few eps."""

PERTURBATION = 16
"""Size of the relative perturbation, in unit roundoffs."""

MULTIPLE = 8
"""How many rms deviations of the perturbed copies two right answers may lie apart."""

SEED = 0

_FEW_EPS = 8
_SLOPE_EPS = 4
_MOST_STEPS = 12
_MOST_SEQUENCES = 6
_SLICED = ("y", "dx", "dh0", "dc0")

Ask = Callable[[Task], Reply]
Values = dict[str, list[Array]]
"""Quantity -> its blocks in float64, as :func:`bridge.answers.blocks` orders them."""


# -- what a relation says ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a relation.

    Attributes
    ----------
    relation : its name.
    verdict : ``holds``, ``violated``, ``not applicable`` or ``cannot tell``.
    quantity, where : of the worst instance, or the closest to one; empty where nothing was compared.
    worst, allowed : by how much the two answers differ there, and how much rounding explains; NaN likewise.
    reason : which two answers, and their values; for the last two verdicts, why.
    """

    relation: str
    verdict: str
    quantity: str = ""
    where: str = ""
    worst: float = math.nan
    allowed: float = math.nan
    reason: str = ""

    @property
    def text(self) -> str:
        """One line for people."""
        line = f"{self.verdict:<14} {self.relation:<24}"
        known = not math.isnan(self.worst)
        if self.verdict == VIOLATED:
            size = f"by {self.worst:.3g}, allowed {self.allowed:.2g}" if known else ""
            place = f"[{self.where}]" if self.where else ""
            return f"{line} {' '.join(filter(None, [self.quantity, place, size]))}: {self.reason}"
        if self.verdict == HOLDS:
            size = f"worst {self.worst:.2g}, allowed {self.allowed:.2g}" if known else ""
            return f"{line} {'; '.join(filter(None, [size, self.reason]))}".rstrip()
        return f"{line} {self.reason}".rstrip()


@dataclasses.dataclass(frozen=True)
class Compared:
    """The worst element of one quantity that was had in two ways; or why it was not, in ``refused``.

    ``ratio`` is the difference over what is allowed; ``swamped`` says that rounding noise is as large as the values;
    ``own`` that the case itself is one of the two ways, not a variation of it.
    """

    quantity: str = ""
    where: str = ""
    worst: float = math.nan
    allowed: float = math.nan
    ratio: float = 0.0
    reason: str = ""
    swamped: bool = False
    refused: str = ""
    own: bool = False


class NotApplicableError(Exception):
    """Raised while a relation is examined, when the backend turns out not to have what it is about."""


class CannotTellError(Exception):
    """Raised while a relation is examined, when the backend does not answer."""


@dataclasses.dataclass(frozen=True)
class Relation:
    """A property that every right gradient has.

    Attributes
    ----------
    name, sentence : what it is called, and what it claims.
    applies : says why a case has nothing to do with it; empty where it has.
    examine : yields comparisons, made by asking the backend.
    """

    name: str
    sentence: str
    applies: Callable[[Case], str]
    examine: Callable[[Calls, Case], Iterator[Compared]]

    def check(self, ask: Ask | Calls, case: Case) -> Result:
        """Examine a case through ``ask``; replies are shared between relations that are given one :class:`Calls`."""
        reason = self.applies(case)
        if reason:
            return Result(self.name, NOT_APPLICABLE, reason=reason)
        calls = ask if isinstance(ask, Calls) else Calls(ask)
        try:
            with np.errstate(all="ignore"):
                found = list(self.examine(calls, case))
        except NotApplicableError as error:
            return Result(self.name, NOT_APPLICABLE, reason=str(error))
        except CannotTellError as error:
            return Result(self.name, CANNOT_TELL, reason=str(error))
        return self._judged(found)

    def _judged(self, found: Sequence[Compared]) -> Result:
        made = [one for one in found if not one.refused]
        refused = "; ".join(list(dict.fromkeys(one.refused for one in found if one.refused))[:3])
        if not made:
            return Result(self.name, CANNOT_TELL, reason=refused or "nothing to compare")
        worst = max(made, key=lambda one: (one.ratio > 1, one.own and one.ratio > 1, one.ratio))
        gradients = [one for one in made if one.quantity != "y"]
        lost = dict.fromkeys(one.quantity for one in gradients or made if one.swamped)
        if worst.ratio > 1:
            verdict, reason = VIOLATED, worst.reason
        elif refused and not gradients:
            verdict, reason = CANNOT_TELL, refused
        elif all(one.swamped for one in gradients or made):
            verdict, reason = CANNOT_TELL, "rounding noise is as large as the values themselves"
        else:
            noisy = f"{' '.join(lost)} as noisy as large in places" if lost else ""
            verdict, reason = HOLDS, "; ".join(filter(None, [refused and f"not seen: {refused}", noisy]))
        return Result(self.name, verdict, worst.quantity, worst.where, worst.worst, worst.allowed, reason)


# -- asking and comparing ----------------------------------------------------------------------------------------


class Side:
    """One of two ways to the same numbers: values, what could not be had and why, and the noise of the values.

    Attributes
    ----------
    values : Values
    refused : quantity -> reason.
    summed : states' gradients that the backend sums over the batch.
    """

    def __init__(
        self,
        values: Values,
        refused: Mapping[str, str],
        summed: frozenset[str],
        noise: Callable[[], Values],
        floor: Mapping[str, Sequence[float]],
    ) -> None:
        self.values, self.refused, self.summed, self.noise, self.floor = values, refused, summed, noise, floor

    def mapped(self, change: Callable[[str, list[Array]], list[Array]]) -> Side:
        """Apply a linear change (a permutation, a slice, a factor) to every quantity."""

        def apply(values: Values) -> Values:
            return {name: change(name, values[name]) for name in self.values}

        def noise() -> Values:
            return {name: [np.abs(block) for block in found] for name, found in apply(self.noise()).items()}

        return Side(apply(self.values), self.refused, self.summed, noise, self.floor)

    def only(self, names: Iterable[str]) -> Side:
        """Keep some quantities."""
        kept = {name: self.values[name] for name in names if name in self.values}
        return Side(kept, {k: v for k, v in self.refused.items() if k in names}, self.summed, self.noise, self.floor)

    def plus(self, other: Side) -> Side:
        """Add what both have."""
        values = {
            name: [a + b for a, b in zip(found, other.values[name], strict=True)]
            for name, found in self.values.items()
            if name in other.values
        }

        def noise() -> Values:
            ours, theirs = self.noise(), other.noise()
            return {name: [np.hypot(a, b) for a, b in zip(ours[name], theirs[name], strict=True)] for name in values}

        floor = {name: [a + b for a, b in zip(self.floor[name], other.floor[name], strict=True)] for name in values}
        return Side(values, {**self.refused, **other.refused}, self.summed | other.summed, noise, floor)


class Calls:
    """A backend's answers, each task asked once; and its noise, measured when it is needed.

    Parameters
    ----------
    ask : callable
        Task -> Reply.
    understands : sequence of str
        What the backend knows of :data:`bridge.answers.SPECIAL`.
    """

    def __init__(self, ask: Ask, *, understands: Sequence[str] = ()) -> None:
        self.ask, self.understands = ask, understands
        self.seen: list[tuple[Task, Reply]] = []
        self.known: dict[Any, Reply] = {}
        self.noises: dict[Any, Values] = {}

    def __call__(self, task: Task) -> Reply:
        """Return the reply to a task, asked for once."""
        key = _key(task)
        if key not in self.known:
            self.known[key] = self.fresh(task)
        return self.known[key]

    def fresh(self, task: Task) -> Reply:
        """Ask, whether it was asked before or not."""
        reply = self.ask(task)
        self.seen.append((task, reply))
        return reply

    def side(self, task: Task, reply: Reply | None = None) -> Side:
        """Return a task's values for comparison; the reply is asked for unless given."""
        values, refused, summed = _values(self(task) if reply is None else reply)

        def noise() -> Values:
            known = self.noise(task)
            return {
                name: known.get(name) or [np.full(block.shape, np.inf) for block in found]
                for name, found in values.items()
            }

        return Side(values, refused, summed, noise, floor(task))

    def noise(self, task: Task) -> Values:
        """Rms deviation of the answers to slightly perturbed copies of the task; infinite where there are none."""
        key = _key(task)
        if key not in self.noises:
            base, _, _ = _values(self(task))
            total = {name: [np.zeros(block.shape) for block in found] for name, found in base.items()}
            for index in range(SAMPLES):
                sample, _, _ = _values(self.fresh(perturbed(task, index)))
                for name, found in total.items():
                    for place, block in enumerate(found):
                        if name in sample and sample[name][place].shape == block.shape:
                            block += np.square(sample[name][place] - base[name][place])
                        else:
                            block += np.inf
            self.noises[key] = {name: [np.sqrt(b / SAMPLES) for b in found] for name, found in total.items()}
        return self.noises[key]


def _key(task: Task) -> Any:
    return task.case.digest(), task.seq_len, task.loss_step, task.accumulate


def _values(reply: Reply) -> tuple[Values, dict[str, str], frozenset[str]]:
    values: Values = {}
    refused: dict[str, str] = {}
    for name, answer in reply.answers.items():
        reason = _refusal(name, answer)
        if reason:
            refused[name] = reason
        else:
            values[name] = [np.asarray(array, np.float64) for _, _, array in blocks(answer.values)]
    summed = frozenset(name for name, answer in reply.answers.items() if answer.batch_summed)
    return values, refused, summed


def _refusal(name: str, answer: Answer) -> str:
    if answer.verdict:
        return f"{answer.verdict}: {answer.reason}"
    if answer.again is not None:
        return f"{name} is not repeatable"
    return f"{name} is nothing" if answer.nothing else ""


def perturbed(task: Task, index: int) -> Task:
    """Return the task with every number of its case multiplied by ``1 + 16 u U(-1, 1)``, seeded by ``index``."""
    rng = np.random.default_rng([SEED, index])
    case = task.case
    size = PERTURBATION * float(np.finfo(case.dtype).eps) / 2
    largest = np.finfo(case.dtype).max

    def shaken(array: Array) -> Array:
        found: Array = np.clip(array * (1 + size * rng.uniform(-1, 1, array.shape)), -largest, largest)
        return found

    head = np.zeros((case.seq_len, case.batch, case.directions * case.hidden_size))
    head[: task.seq_len] = 1 if isinstance(case.head, str) and task.loss_step is not None else _head(case, task.seq_len)
    return dataclasses.replace(task, case=_each(case.replace(head=head), shaken))


def floor(task: Task) -> dict[str, list[float]]:
    """What an absolute error of 1 in every activation's slope may do to each block of each quantity, roughly.

    A slope that is formed as ``1 - h**2`` or ``s * (1 - s)`` has an absolute error of eps however small it is itself,
    which a saturated network's gradient shows. Its size is that of the heads, carried down through the weights.
    """
    case = task.case
    heads = [head for head in task.heads() if head is not None]
    size = max(float(np.abs(head).max(initial=0)) for head in heads)
    if case.mode in ("rnn_relu", "rnn_identity"):  # their slopes are exact
        size = 0.0
    terms = math.sqrt(task.seq_len * case.batch)
    found: dict[str, list[float]] = {"y": [0.0]}
    per_layer: list[tuple[float, float, float]] = []  # cotangent, to inputs, to states
    for directions in reversed(case.params):
        to_inputs = math.hypot(*(_column_norm(weights.weight_ih) for weights in directions))
        to_states = max(_column_norm(weights.weight_hh) for weights in directions)
        per_layer.append((size, to_inputs, to_states))
        size *= to_inputs
    per_layer.reverse()
    found["dx"] = [size]
    found["dh0"] = found["dc0"] = [max(cot * max(1.0, states) for cot, _, states in per_layer)]
    inputs = float(np.abs(case.x[: task.seq_len]).max())
    hidden = max(1.0, float(np.abs(case.h0).max()))
    by_name = {"dweight_ih": 1.0, "dweight_hh": hidden, "dbias_ih": 1.0, "dbias_hh": 1.0}
    for name, factor in by_name.items():
        found[name] = [
            cot * terms * factor * (inputs if name == "dweight_ih" and layer == 0 else 1.0)
            for layer, (cot, _, _) in enumerate(per_layer)
            for _ in range(case.directions)
        ]
    return found


def _column_norm(matrix: Array) -> float:
    return float(np.sqrt(np.square(matrix, dtype=np.float64).sum(axis=0).max()))


def agree(left: Side, right: Side, how: str, case: Case) -> Iterator[Compared]:
    """Compare what both sides have, quantity by quantity, in the case's dtype; ``how`` says what is compared with what.

    Yields
    ------
    Compared
        A quantity's worst element, or why it could not be compared.
    """
    for name in {**left.refused, **right.refused}:
        yield Compared(name, refused=left.refused.get(name) or right.refused[name])
    for name, ours in left.values.items():
        if name in right.values:
            theirs = right.values[name]
            if [a.shape for a in ours] != [b.shape for b in theirs]:
                yield Compared(name, refused=f"{name} has different shapes: {how}")
            else:
                yield _agree(name, left, right, how, case)


def _agree(name: str, left: Side, right: Side, how: str, case: Case) -> Compared:
    kind = np.finfo(case.dtype)
    worst = Compared(name)
    sizes = slacks = 0.0
    for place, (a, b) in enumerate(zip(left.values[name], right.values[name], strict=True)):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.where(same, 0.0, np.abs(a - b))
        difference = np.where(np.isnan(difference), np.inf, difference)
        size = np.where(np.isfinite(a) & np.isfinite(b), np.maximum(np.abs(a), np.abs(b)), 0.0)
        slope = max(left.floor[name][place], right.floor[name][place])
        allowed = kind.eps * (_FEW_EPS * (size + _level(name, size)) + _SLOPE_EPS * slope) + 16 * kind.tiny
        if (difference > allowed).any():
            sigma = np.hypot(left.noise()[name][place], right.noise()[name][place])
            allowed = allowed + MULTIPLE * np.maximum(sigma, _level(name, sigma) / 4)
            allowed = np.where(np.isnan(allowed), np.inf, allowed)
        sizes += float(np.square(size).sum())
        slacks += float(np.square(allowed).sum())
        ratio = np.where(difference == 0, 0.0, difference / allowed)
        ratio = np.where(np.isnan(ratio), 0.0, ratio)  # infinite difference, infinite noise
        if ratio.max() > worst.ratio or not worst.where:
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
            worst = Compared(
                name,
                _indices(name, at, place, case),
                float(difference[at]),
                float(allowed[at]),
                float(ratio[at]),
                f"{a[at]:.9g} against {b[at]:.9g}, {how}",
            )
    return dataclasses.replace(worst, swamped=sizes > 0 and not slacks < sizes / 4)


def _level(name: str, array: Array) -> Array:
    """Rms over the time step, the cell's state or the weight block that an element belongs to."""
    axes = tuple(range(1, array.ndim)) if name in _SLICED else None
    level: Array = np.sqrt(np.mean(np.square(array), axis=axes, keepdims=True))
    return level


def _indices(name: str, at: tuple[int, ...], place: int, case: Case) -> str:
    names = ("timestep", "batch", "row")
    cell = ""
    if name not in ("y", "dx"):
        if name in ("dh0", "dc0"):
            place, at, names = at[0], at[1:], ("batch", "row", "")
        else:
            names = ("row", "col", "")
        layer, direction = divmod(place, case.directions)
        cell = f"layer {layer}, " + (f"direction {direction}, " if case.bidirectional else "")
    return cell + ", ".join(f"{key} {index}" for key, index in zip(names, at, strict=False))


# -- cases made from cases ---------------------------------------------------------------------------------------


def _each(case: Case, change: Callable[[Array], Array]) -> Case:
    """Apply a change to every array of a case."""

    def maybe(array: Array | None) -> Array | None:
        return None if array is None else change(array)

    return case.replace(
        x=change(case.x),
        params=tuple(tuple(Weights(*map(change, weights)) for weights in directions) for directions in case.params),
        h0=change(case.h0),
        c0=maybe(case.c0),
        head=case.head if isinstance(case.head, str) else change(case.head),
        head_hn=maybe(case.head_hn),
        head_cn=maybe(case.head_cn),
    )


def _batched(case: Case, change: Callable[[Array], Array]) -> Case:
    """Apply a change of the batch, axis 1, to every array that has one."""

    def maybe(array: Array | None) -> Array | None:
        return None if array is None else change(array)

    return case.replace(
        x=change(case.x),
        h0=change(case.h0),
        c0=maybe(case.c0),
        head=case.head if isinstance(case.head, str) else change(case.head),
        head_hn=maybe(case.head_hn),
        head_cn=maybe(case.head_cn),
    )


def prefix(case: Case, seq_len: int | None) -> Case:
    """Return the case on its first steps alone.

    Raises
    ------
    BadInputError
        For a length that the case does not have.
    """
    length = case.check_length(seq_len)
    if length == case.seq_len:
        return case
    return Task(case, length).alone()


def _head(case: Case, seq_len: int | None = None) -> Array:
    return case.heads(seq_len)[0]


def _task(case: Case) -> Task:
    return Task(case, case.seq_len)


def _spread(count: int) -> list[int]:
    """All of 0 ... count - 1 or, where those are many, some of them, ends included."""
    if count <= _MOST_STEPS:
        return list(range(count))
    return sorted({round(i) for i in np.linspace(0, count - 1, _MOST_STEPS)})


def _everything(case: Case) -> tuple[str, ...]:
    return REQUESTABLE if case.mode == "lstm" else REQUESTABLE[:3]


def _all(case: Case) -> str:
    return ""


# -- the relations -----------------------------------------------------------------------------------------------


def _causal(case: Case) -> str:
    if "x" not in case.requested:
        return "the case asks for no dx"
    if case.seq_len == 1:
        return "one step only"
    if case.bidirectional and case.layers > 1:
        return "in stacked bidirectional layers every output reads every input"
    return ""


def _causality(calls: Calls, case: Case) -> Iterator[Compared]:
    kind, size = np.finfo(case.dtype), case.hidden_size
    for direction in range(case.directions):
        for step in _spread(case.seq_len):
            task = Task(case, case.seq_len, step)
            if case.bidirectional:
                whole = task.heads()[0]
                half = np.zeros_like(whole)
                own = slice(direction * size, (direction + 1) * size)
                half[step, :, own] = whole[step, :, own]
                task = _task(case.replace(head=half, head_hn=None, head_cn=None))
            side = calls.side(task)
            if "dx" not in side.values:
                yield Compared("dx", refused=side.refused.get("dx", "no answer"))
                continue
            (dx,) = side.values["dx"]
            unseen = dx[:step] if direction else dx[step + 1 :]
            if not unseen.size:
                continue
            sizes = np.where(np.isnan(unseen), np.inf, np.abs(unseen))
            t, b, i = (int(k) for k in np.unravel_index(int(np.argmax(sizes)), sizes.shape))
            worst = float(sizes[t, b, i])
            finite = np.abs(dx[np.isfinite(dx)])
            allowed = 4 * float(kind.eps) * float(finite.max(initial=0)) + 16 * float(kind.tiny)
            way = f" of the {'reverse' if direction else 'forward'} direction" if case.bidirectional else ""
            reason = f"{unseen[t, b, i]:.9g} for 0: output {step}{way} does not read that input"
            where = f"timestep {t if direction else t + step + 1}, batch {b}, row {i}"
            yield Compared("dx", where, worst, allowed, worst / allowed, reason)


def _request_invariance(calls: Calls, case: Case) -> Iterator[Compared]:
    everything = _everything(case)
    first: dict[str, tuple[Side, tuple[str, ...]]] = {}
    for count in range(len(everything), 0, -1):
        for subset in itertools.combinations(everything, count):
            side = calls.side(_task(case.replace(requested=subset)))
            for name in side.refused:
                yield Compared(name, refused=side.refused[name])
            for name in side.values:
                if name not in first:
                    first[name] = side, subset
                    continue
                whole, asked = first[name]
                how = f"requested {' '.join(subset)} against {' '.join(asked)}"
                for one in agree(side.only([name]), whole.only([name]), how, case):
                    yield dataclasses.replace(one, own=case.requested in (subset, asked))


def _one_way(case: Case) -> str:
    if case.bidirectional:
        return "a reverse direction reads the later inputs"
    return "one step only" if case.seq_len == 1 else ""


def _prefix_consistency(calls: Calls, case: Case) -> Iterator[Compared]:
    for length in (1 + k for k in _spread(case.seq_len - 1)):
        for step in sorted({0, length - 1}):
            short = calls.side(Task(case, length, step))
            long = calls.side(Task(case, case.seq_len, step))
            cut = long.mapped(lambda name, found, n=length: [found[0][:n]] if name in ("y", "dx") else found)  # type: ignore[misc]
            how = f"{length} steps against {case.seq_len}, loss on output {step}"
            yield from agree(short, cut, how, case)


def _linearity(calls: Calls, case: Case) -> Iterator[Compared]:
    rng = np.random.default_rng([SEED, 101])
    heads = [_head(case), case.head_hn, case.head_cn]

    def other(head: Array | None) -> Array | None:
        if head is None:
            return None
        size = float(np.sqrt(np.mean(np.square(head, dtype=np.float64))))
        scale = 2.0 ** round(math.log2(size)) if 0 < size < math.inf else 1.0
        return scale * rng.choice([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0], head.shape)

    def asked(given: Sequence[Array | None]) -> Side:
        return calls.side(_task(case.replace(head=given[0], head_hn=given[1], head_cn=given[2])))

    others = [other(head) for head in heads]
    both = [None if a is None or b is None else a + b for a, b in zip(heads, others, strict=True)]
    one, two = calls.side(_task(case)), asked(others)
    gradients = [name for name in one.values if name != "y"]
    summed = asked(both)
    yield from agree(
        summed.only(gradients), one.plus(two).only(gradients), "heads g + g' against the sum over g and g'", case
    )
    larger = asked([None if head is None else -4 * head for head in heads])
    four = one.only(gradients).mapped(lambda name, found: [-4 * block for block in found])
    yield from agree(larger.only(gradients), four, "heads -4 g against -4 times those of g", case)
    yield from agree(two.only(["y"]), one.only(["y"]), "outputs under other head gradients", case)


def _batch_independence(calls: Calls, case: Case) -> Iterator[Compared]:
    whole = calls.side(_task(case))
    per_sequence = [name for name in whole.values if name in _SLICED and name not in whole.summed]
    over_batch = [name for name in whole.values if name not in per_sequence]
    rng = np.random.default_rng([SEED, 102])
    case = case.replace(head=_head(case))
    stranger = _batched(case, lambda array: rng.standard_normal((len(array), 1, array.shape[2])))
    stranger = stranger.replace(head=np.zeros_like(stranger.head))
    if stranger.head_hn is not None:
        stranger = stranger.replace(head_hn=np.zeros_like(stranger.head_hn))
    if stranger.head_cn is not None:
        stranger = stranger.replace(head_cn=np.zeros_like(stranger.head_cn))
    both = _joined(case, stranger)
    size = case.batch

    def own(name: str, found: list[Array]) -> list[Array]:
        return [found[0][:, :size]] if name in per_sequence else found

    with_stranger = calls.side(_task(both)).mapped(own)
    yield from agree(with_stranger, whole, "a sequence without loss added to the batch against none", case)
    if size == 1:
        return
    alone = [
        calls.side(_task(_batched(case, lambda array, k=index: array[:, k : k + 1])))  # type: ignore[misc]
        for index in range(min(size, _MOST_SEQUENCES))
    ]
    for index, side in enumerate(alone):
        part = whole.only(per_sequence).mapped(lambda name, found, k=index: [found[0][:, k : k + 1]])  # type: ignore[misc]
        yield from agree(side.only(per_sequence), part, f"sequence {index} alone against in the batch", case)
    if size <= _MOST_SEQUENCES:
        total = alone[0]
        for side in alone[1:]:
            total = total.plus(side)
        yield from agree(total.only(over_batch), whole.only(over_batch), "summed over the sequences alone", case)


def _joined(case: Case, other: Case) -> Case:
    arrays = {
        name: np.concatenate([getattr(case, name), getattr(other, name)], axis=1)
        for name in ("x", "h0", "c0", "head", "head_hn", "head_cn")
        if getattr(case, name) is not None
    }
    return case.replace(**arrays)


def _several(case: Case) -> str:
    return "" if case.batch > 1 else "a batch of one"


def _batch_permutation(calls: Calls, case: Case) -> Iterator[Compared]:
    order = np.roll(np.arange(case.batch), 1)
    turned = calls.side(_task(_batched(case, lambda array: array[:, order])))
    whole = calls.side(_task(case))

    def same(name: str, found: list[Array]) -> list[Array]:
        return [found[0][:, order]] if name in _SLICED and name not in whole.summed else found

    yield from agree(turned, whole.mapped(same), "the batch rolled by one", case)


def _units(case: Case) -> str:
    return "" if case.hidden_size > 1 else "one hidden unit"


def _shuffles(size: int, count: int) -> list[Array]:
    """Return permutations, no two neighbours alike: layers whose units are mixed up would else look right."""
    rng = np.random.default_rng([SEED, 103])
    orders: list[Array] = [np.arange(size)]
    for _ in range(count):
        order = rng.permutation(size)
        orders.append(np.roll(order, 1) if (order == orders[-1]).all() else order)
    return orders[1:]


def _hidden_permutation(calls: Calls, case: Case) -> Iterator[Compared]:
    size, gates, ways = case.hidden_size, case.gates, case.directions
    cells = _shuffles(size, case.layers * ways)
    orders = [cells[layer * ways : (layer + 1) * ways] for layer in range(case.layers)]
    rows = [[np.concatenate([k * size + order for k in range(gates)]) for order in row] for row in orders]
    outputs = [np.concatenate([d * size + order for d, order in enumerate(row)]) for row in orders]

    def parameter(name: str, layer: int, direction: int, array: Array) -> Array:
        array = array[rows[layer][direction]]
        if name == "weight_hh":
            return array[:, orders[layer][direction]]
        return array[:, outputs[layer - 1]] if name == "weight_ih" and layer else array

    def state(array: Array | None) -> Array | None:
        return None if array is None else np.stack([one[:, cell] for one, cell in zip(array, cells, strict=True)])

    turned = case.replace(
        params=_parameters(case, parameter),
        h0=state(case.h0),
        c0=state(case.c0),
        head=case.head if isinstance(case.head, str) else case.head[..., outputs[-1]],
        head_hn=state(case.head_hn),
        head_cn=state(case.head_cn),
    )

    def same(name: str, found: list[Array]) -> list[Array]:
        if name == "y":
            return [found[0][..., outputs[-1]]]
        if name in ("dh0", "dc0"):
            return [np.stack([one[:, cell] for one, cell in zip(found[0], cells, strict=True)])]
        if name == "dx":
            return found
        return [parameter(name[1:], *divmod(place, ways), array) for place, array in enumerate(found)]

    yield from agree(calls.side(_task(turned)), calls.side(_task(case)).mapped(same), "hidden units renumbered", case)


def _parameters(case: Case, change: Callable[[str, int, int, Array], Array]) -> tuple[tuple[Weights, ...], ...]:
    return tuple(
        tuple(
            Weights(*(change(name, layer, direction, getattr(weights, name)) for name in PARAM_NAMES))
            for direction, weights in enumerate(directions)
        )
        for layer, directions in enumerate(case.params)
    )


def _both_ways(case: Case) -> str:
    return "" if case.bidirectional else "one direction only"


def _time_reversal(calls: Calls, case: Case) -> Iterator[Compared]:
    size = case.hidden_size
    halves = np.concatenate([np.arange(size, 2 * size), np.arange(size)])
    swapped = np.arange(2 * case.layers) ^ 1

    def parameter(name: str, layer: int, direction: int, _: Array) -> Array:
        array: Array = getattr(case.params[layer][1 - direction], name)
        return array[:, halves] if name == "weight_ih" and layer else array

    def state(array: Array | None) -> Array | None:
        return None if array is None else array[swapped]

    turned = case.replace(
        x=case.x[::-1],
        params=_parameters(case, parameter),
        h0=state(case.h0),
        c0=state(case.c0),
        head=_head(case)[::-1, :, halves],
        head_hn=state(case.head_hn),
        head_cn=state(case.head_cn),
    )

    def same(name: str, found: list[Array]) -> list[Array]:
        if name == "y":
            return [found[0][::-1][..., halves]]
        if name == "dx":
            return [found[0][::-1]]
        if name in ("dh0", "dc0"):
            return [found[0][swapped]]
        other = [found[int(place)] for place in swapped]
        return [array[:, halves] if name == "dweight_ih" and place > 1 else array for place, array in enumerate(other)]

    how = "time reversed and directions swapped"
    yield from agree(calls.side(_task(turned)), calls.side(_task(case)).mapped(same), how, case)


def _answered(calls: Calls, case: Case) -> list[tuple[Task, Reply]]:
    """Return every call so far, the case's own among them; none where the backend does not answer that."""
    answers = calls(_task(case)).answers
    if answers and all(answer.verdict for answer in answers.values()):
        raise CannotTellError("; ".join(dict.fromkeys(_refusal(*item) for item in answers.items())))
    return list(calls.seen)


def _repeatability(calls: Calls, case: Case) -> Iterator[Compared]:
    for task, reply in _answered(calls, case):
        for name, answer in reply.answers.items():
            if answer.verdict:
                continue
            if answer.again is None:
                yield Compared(name, worst=0.0, allowed=0.0)
            else:
                yield _unsteady(name, answer, task, case)


def _unsteady(name: str, answer: Answer, task: Task, case: Case) -> Compared:
    worst = Compared(name)
    pairs = list(zip(blocks(answer.values), blocks(answer.again), strict=True))
    for place, ((_, _, a), (_, _, b)) in enumerate(pairs):
        difference = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
        difference = np.where(np.isnan(difference), np.where(np.isnan(a) == np.isnan(b), 0.0, np.inf), difference)
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(difference)), difference.shape))
        if not worst.where or difference[at] > worst.worst:
            reason = f"{a[at]:.9g} and then {b[at]:.9g} in two identical calls"
            where = _indices(name, at, place, case)
            worst = Compared(name, where, float(difference[at]), 0.0, math.inf, reason)
    asked = " ".join(task.case.requested)
    differs = "" if task == _task(case) else f", {task.seq_len} steps, requested {asked}" + _loss(task)
    return dataclasses.replace(worst, reason=worst.reason + differs)


def _loss(task: Task) -> str:
    return "" if task.loss_step is None else f", loss on output {task.loss_step}"


def _call_independence(calls: Calls, case: Case) -> Iterator[Compared]:
    rng = np.random.default_rng([SEED, 104])
    before = calls.fresh(_task(case))
    other = _each(case.replace(head=_head(case)), lambda array: 3 * rng.standard_normal(array.shape))
    calls.fresh(_task(other.replace(requested=_everything(case))))
    after = calls.fresh(_task(case))
    how = "after a call with other data against before it"
    if after.notes:
        how += f" ({'; '.join(after.notes)})"
    yield from agree(calls.side(_task(case), after), calls.side(_task(case), before), how, case)


def _accumulation(calls: Calls, case: Case) -> Iterator[Compared]:
    if "accumulate" not in calls.understands:
        raise NotApplicableError("the backend has no way to add gradients up")
    for asked in dict.fromkeys([case.requested, *((name,) for name in case.requested)]):
        single = case.replace(requested=asked)
        once = calls.side(_task(single))
        twice = calls.side(dataclasses.replace(_task(single), accumulate=2))
        names = [name for name in (*once.values, *twice.refused) if name != "y"]
        doubled = once.only(names).mapped(lambda name, found: [2 * block for block in found])
        how = f"two backward passes added up against twice one, requested {' '.join(asked)}"
        for one in agree(twice.only(names), doubled, how, case):
            yield dataclasses.replace(one, refused=one.refused and f"{one.refused} (requested {' '.join(asked)})")


def _inputs(calls: Calls, case: Case) -> Iterator[Compared]:
    for task, reply in _answered(calls, case):
        if all(answer.verdict for answer in reply.answers.values()):
            continue
        for note in reply.notes:
            if "wrote into" in note:
                asked = f"{note}, requested {' '.join(task.case.requested)}"
                yield Compared("", note.rpartition(" ")[2], math.nan, 0.0, math.inf, asked)
        yield Compared(worst=0.0, allowed=0.0)


def _dtypes(calls: Calls, case: Case) -> Iterator[Compared]:
    try:
        single = case.replace(dtype="float32")
    except BadInputError:
        raise NotApplicableError("the case's numbers do not fit float32") from None
    sides = {}
    for dtype in ("float32", "float64"):
        sides[dtype] = calls.side(_task(single.replace(dtype=dtype)))
        found = sides[dtype]
        if not found.values and all(r.startswith((UNSUPPORTED, UNAVAILABLE)) for r in found.refused.values()):
            raise NotApplicableError(f"{dtype}: {'; '.join(dict.fromkeys(found.refused.values()))}")
    yield from agree(sides["float32"], sides["float64"], "float32 against float64", single)


RELATIONS = (
    Relation(
        "causality",
        "The loss on one output has no gradient at inputs which that output does not read.",
        _causal,
        _causality,
    ),
    Relation(
        "request invariance",
        "A gradient does not depend on which others were requested.",
        _all,
        _request_invariance,
    ),
    Relation(
        "prefix consistency",
        "Later inputs change no gradient of a loss that does not read them.",
        _one_way,
        _prefix_consistency,
    ),
    Relation(
        "linearity",
        "Gradients are linear in the head gradients; outputs do not depend on them.",
        _all,
        _linearity,
    ),
    Relation(
        "batch independence",
        "A sequence's gradients do not depend on the other sequences of its batch; parameters' gradients add up.",
        _all,
        _batch_independence,
    ),
    Relation(
        "batch permutation",
        "Sequences in another order have their gradients in that order.",
        _several,
        _batch_permutation,
    ),
    Relation(
        "hidden-unit permutation",
        "Hidden units numbered otherwise, in each layer and direction, have their gradients numbered so.",
        _units,
        _hidden_permutation,
    ),
    Relation(
        "time reversal",
        "A bidirectional net on the reversed sequence, directions swapped, has its gradients reversed and swapped.",
        _both_ways,
        _time_reversal,
    ),
    Relation(
        "call independence",
        "An earlier call with other data changes nothing.",
        _all,
        _call_independence,
    ),
    Relation(
        "accumulation",
        "Two backward passes added up (grad_req='add') give twice the gradient.",
        _all,
        _accumulation,
    ),
    Relation(
        "dtype agreement",
        "float32 is near float64.",
        _all,
        _dtypes,
    ),
    Relation(
        "repeatability",
        "The same call twice gives the same bits, in every call that was made for these relations.",
        _all,
        _repeatability,
    ),
    Relation(
        "inputs left unmodified",
        "The framework does not write into the arrays it is given, in any call made for these relations.",
        _all,
        _inputs,
    ),
)
"""Every relation; the last two look at all calls that the others made."""


# -- checking ----------------------------------------------------------------------------------------------------


def examine(
    ask: Ask, case: Case, relations: Sequence[Relation] = RELATIONS, *, understands: Sequence[str] = ()
) -> list[Result]:
    """Check relations through ``ask`` (Task -> Reply), which need not be a backend of gradbridge.

    ``understands`` says what it knows of :data:`bridge.answers.SPECIAL`.
    """
    calls = Calls(ask, understands=understands)
    return [relation.check(calls, case) for relation in relations]


def check(
    case: Case | str | os.PathLike[str],
    backends: str | Backend | Iterable[str | Backend] | None = None,
    seq_len: int | None = None,
    *,
    timeout: float | None = None,
    sources: Sources | None = None,
) -> pd.DataFrame:
    """Check every relation on a case for each backend: ``relations.csv``.

    Parameters
    ----------
    case : Case, name or path
        What it requests is kept, except where a relation is about that.
    backends : pattern, backend, or several; the default set if None.
    seq_len : int, optional
        Steps of the case to use; all by default.
    timeout, sources : as in :func:`bridge.compare`.

    Returns
    -------
    DataFrame
        One row per backend and relation, columns :data:`COLUMNS`.

    Raises
    ------
    BadInputError
        For a case, length or pattern that cannot be used.
    """
    case = prefix(case if isinstance(case, Case) else load_case(case), seq_len)
    patterns = [backends] if isinstance(backends, str) or hasattr(backends, "open") else backends
    rows: list[tuple[str, Result]] = []
    for backend in select(patterns, sources):  # type: ignore[arg-type]
        session = backend.open(timeout)
        try:
            found = examine(session.ask, case, understands=backend.understands)
        finally:
            session.stop()
        rows += [(backend.name, result) for result in found]
    return frame(case, rows)


def frame(case: Case, results: Iterable[tuple[str, Result]]) -> pd.DataFrame:
    """Return (backend, result) pairs as a table with the columns :data:`COLUMNS`."""
    import pandas as pd

    rows = [{"case": case.name, "backend": backend, **dataclasses.asdict(result)} for backend, result in results]
    return pd.DataFrame(rows, columns=list(COLUMNS))
