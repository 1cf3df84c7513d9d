"""Named faults: small transformations of the reference computation that give wrong gradients, as frameworks give them.

A fault states which gradients a framework with that fault returns; :func:`match` finds the simplest fault, or pair of
faults, that reproduces every value a backend returned. Where none does, the wrong gradient stays unexplained.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.answers import Answer, Task, blocks
from bridge.arithmetic import Arithmetic, Array, Exact, Linear
from bridge.case import Case
from bridge.cells import GRU, Pulled
from bridge.reference import Gradients, Strand, Tape, accumulated, side_by_side, without_replicas
from bridge.tolerance import Truth, swamped, truth
from bridge.verdicts import NOT_FINITE, NOT_REPEATABLE, WRONG, Judged, judge

UNEXPLAINED = "unexplained"
WEIGHTS = ("dweight_ih", "dweight_hh")
BIASES = ("dbias_ih", "dbias_hh")
STATES = ("dh0", "dc0")
MAX_TRUNCATION = 50
"""Longest sequence for which truncations are tried; each needs one adjoint pass per loss step."""

SLACK = 4.0
"""Tolerances by which a fault's own rounding may exceed the right gradient's."""

QUICK_STEPS = 8
"""Longest sequence for which a quick diagnosis tries them."""

Change = Callable[[Gradients], Gradients]
"""A change of finished gradients."""

MXNET, FLUX = "apache/mxnet#21143", "FluxML/Flux.jl#1547"


# -- what can be wrong -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the adjoint is computed wrongly. The default is the right way.

    Attributes
    ----------
    order : ``backward``; ``forward``, the adjoint recursion run from the first step to the last; ``absorbed``, the
        same with the first step's state cotangent kept by the initial state's slot instead of flowing on.
    recurrent : whether the product of a step's cotangent with ``weight_hh`` reaches the step before, or the initial
        state; the GRU's direct path ``z * h`` and the LSTM's cell state flow anyhow.
    reach : steps that a cotangent flows before it is dropped, None lets it flow; the initial state gets its share.
    strands : the (layer, direction) pairs to which ``order``, ``recurrent`` and ``reach`` apply; None is all.
    counted : a step's share of the parameters' gradients is counted once more for every step that is pulled back
        after it (1), and that total once more (2).
    doubling : each step adds the parameters' gradient buffer to itself before it adds its own share.
    state : how the initial state's gradient comes about: ``carry``, what flows out at the end; ``first``, what the
        first step gives; ``vector``, that summed over the batch; ``sum``, the sum over all steps; ``final``, the final
        state's head gradient; or several of them added.
    vector : the state between the first two steps is one vector for the whole batch, its cotangent summed over it.
    cell : a cell to use instead of the case's.
    last_head : only the last step's head gradients count.
    foreign : pairs of strands; the first one's weight gradients are summed with the second one's inputs and states.
    own_outputs : layers whose ``dweight_ih`` is summed with their own outputs in place of the outputs below.
    after : changes of the finished gradients, in order.
    """

    order: str = "backward"
    recurrent: bool = True
    reach: int | None = None
    strands: tuple[tuple[int, int], ...] | None = None
    counted: int = 0
    doubling: bool = False
    state: str = "carry"
    vector: bool = False
    cell: Any = None
    last_head: bool = False
    foreign: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = ()
    own_outputs: tuple[int, ...] = ()
    after: tuple[Change, ...] = ()


@dataclasses.dataclass(frozen=True)
class Fault:
    """A named fault, with its parameter filled in.

    Attributes
    ----------
    name : its name; see :data:`CATALOGUE`.
    detail : the parameter, for people (``k=3``, ``layer 1``), or empty.
    changes : fields of :class:`Plan` that differ from the right way.
    """

    name: str
    detail: str
    changes: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.name} ({self.detail})" if self.detail else self.name

    @property
    def sentence(self) -> str:
        """What is wrong, as a clause."""
        return CATALOGUE[self.name].sentence + (f" ({self.detail})" if self.detail else "")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A fault's entry in the catalogue.

    Attributes
    ----------
    sentence : what is wrong, as a clause for a maintainer.
    report : where it was reported, or empty.
    signature : how it looks on the Jacobian map (rows loss steps s, columns input steps t), or where else.
    variants : the faults of that name which a case can show.
    """

    sentence: str
    report: str
    signature: str
    variants: Callable[[Case], Iterator[Fault]]


def plan(faults: Sequence[Fault]) -> Plan | None:
    """Merge faults into one plan; None where they contradict each other."""
    merged: dict[str, Any] = {}
    after: tuple[Any, ...] = ()
    for fault in faults:
        for key, value in fault.changes:
            if key == "after":
                after += value
            elif key in merged and merged[key] != value:
                if key != "state":
                    return None
                merged[key] = value
            else:
                merged[key] = value
    return Plan(**merged, after=after)


# -- computing them ----------------------------------------------------------------------------------------------


def gradients(task: Task, faults: Sequence[Fault]) -> Gradients | None:
    """Gradients that a framework with these faults returns; None where the faults contradict each other.

    Parameters
    ----------
    task : Task
    faults : one or more, composed

    Returns
    -------
    dict like that of :func:`bridge.reference.gradients`, float64.
    """
    merged = plan(faults)
    return None if merged is None else changed(compute(task, merged), merged)


def compute(task: Task, how: Plan, tape: Tape | None = None) -> Gradients:
    """Run the adjoint according to a plan, up to the changes of finished gradients."""
    head_y, head_hn, head_cn = task.heads()
    if how.last_head:
        head_y = np.where(np.arange(len(head_y))[:, None, None] == len(head_y) - 1, head_y, 0)
    if tape is None or how.cell is not None:
        tape = Tape(task.case, task.seq_len, Exact(), cell=how.cell)
    with np.errstate(all="ignore"):
        pulled = tape.pull(*tape.cotangents(head_y, head_hn, head_cn), through=_Faulty(how, tape, task.accumulate))
    return accumulated(without_replicas(pulled), task.accumulate)


def changed(found: Gradients, how: Plan) -> Gradients:
    """Apply a plan's changes of finished gradients."""
    with np.errstate(all="ignore"):
        for change in how.after:
            found = change(found)
    return found


class _Faulty:
    """Pulls a strand's cotangents back according to a plan."""

    def __init__(self, how: Plan, tape: Tape, passes: int) -> None:
        self.how, self.tape, self.passes = how, tape, passes

    def __call__(
        self, place: tuple[int, int], strand: Strand, head: Array, head_h: Array | None, head_c: Array | None
    ) -> dict[str, Array]:
        how = self.how
        if how.strands is not None and place not in how.strands:
            how = dataclasses.replace(how, order="backward", recurrent=True, reach=None, state="carry", vector=False)
        other = dict(how.foreign).get(place)
        foreign: Strand | _OwnOutputs | None = None if other is None else self.tape.strands[other[0]][other[1]]
        if place[0] in how.own_outputs:
            foreign = _OwnOutputs(self.tape, place)
        pull = _truncated if how.reach is not None and how.reach > 1 else _pull
        return pull(strand, head, head_h, head_c, how, foreign, passes=self.passes, reverse=place[1] == 1)


class _OwnOutputs:
    """Stands for a strand whose inputs are its layer's own outputs."""

    def __init__(self, tape: Tape, place: tuple[int, int]) -> None:
        layer, direction = place
        outputs = tape.layers[layer + 1]
        self.inputs = outputs[::-1] if direction else outputs

    def weight_gradients(self, da_in: Array, da_hid: Array, first: int, stop: int) -> dict[str, Array]:
        """Sum ``dweight_ih`` with the outputs; the rest is as it should be."""
        return {"dweight_ih": Exact().outer(da_in, side_by_side(self.inputs[first:stop]))}


def _pull(
    strand: Strand,
    head: Array,
    head_h: Array | None,
    head_c: Array | None,
    how: Plan,
    foreign: Strand | _OwnOutputs | None = None,
    replicas: bool = False,
    passes: int = 1,
    reverse: bool = False,
) -> dict[str, Array]:
    ar, weights, steps = strand.arithmetic, strand.weights, len(strand.local)
    to_inputs, to_state = ar.linear(weights.weight_ih.T), ar.linear(weights.weight_hh.T * how.recurrent)
    forward = how.order != "backward"
    zero = np.zeros_like(head[-1])
    dh = zero if head_h is None else head_h
    dc = None if strand.start[1] is None else zero if head_c is None else head_c
    inputs, hidden = [zero] * steps, [zero] * steps
    earlier_h: list[Array] = [zero] * steps
    earlier_c: list[Array | None] = [None] * steps
    for t in range(steps) if forward else reversed(range(steps)):
        inputs[t], hidden[t], dh, dc = strand.cell.adjoint(head[t] + dh, dc, strand.local[t], to_state, ar)
        earlier_h[t], earlier_c[t] = dh, dc
        if how.reach == 1 or (how.order == "absorbed" and t == 0):
            dh, dc = np.zeros_like(dh), None if dc is None else np.zeros_like(dc)
        elif how.reach is not None and replicas:  # replica s is the loss step; its cotangent ends after `reach` steps
            alive = (np.arange(dh.shape[1]) < t - 1 + how.reach)[:, None]
            dh, dc = dh * alive, None if dc is None else dc * alive
        if how.vector and t == 0 and forward:
            dh = np.broadcast_to(dh.sum(axis=-1, keepdims=True), dh.shape)
            dc = None if dc is None else np.broadcast_to(dc.sum(axis=-1, keepdims=True), dc.shape)
    order = range(steps) if forward else range(steps - 1, -1, -1)
    share = {t: steps - place + (how.counted - 1) if how.counted else 1 for place, t in enumerate(order)}
    scale = _doubled(steps, passes) if how.doubling and passes > 1 else np.array([share[t] for t in range(steps)])

    def summed(sums: Strand | _OwnOutputs, scale: Array) -> dict[str, Array]:
        da_in, da_hid = (side_by_side([da[t] * scale[t] for t in range(steps)]) for da in (inputs, hidden))
        return sums.weight_gradients(da_in, da_hid, 0, steps)

    grads = summed(strand, scale)
    if how.doubling and reverse:  # the biases' shares are added in the sequence's own order of time
        mirrored = summed(strand, scale[::-1])
        grads |= {name: mirrored[name] for name in BIASES}
    if isinstance(strand.cell, _ResetBefore):
        rows = slice(2 * len(zero), None)
        da_n = side_by_side([hidden[t][rows] * scale[t] for t in range(steps)])
        grads["dweight_hh"][:, rows] = strand.cell.candidate_rows(strand.local, da_n)
    if foreign is not None:
        theirs = summed(foreign, scale)
        grads |= {name: theirs[name] for name in WEIGHTS if name in theirs and theirs[name].shape == grads[name].shape}
    grads["dx"] = np.stack([to_inputs(da) for da in inputs])
    last = steps - 1 if forward else 0
    grads["dh0"] = _state(earlier_h, how.state, last, head_h)
    if earlier_c[0] is not None:
        grads["dc0"] = _state([array for array in earlier_c if array is not None], how.state, last, head_c)
    return grads


def _doubled(steps: int, passes: int) -> Array:
    """Each step's weight where the buffer doubles at every step, last step first, per pass, (T,)."""
    again = sum(2.0 ** (steps * earlier) for earlier in range(passes)) / passes
    weights: Array = again * 2.0 ** np.arange(steps)
    return weights


def _state(earlier: list[Array], how: str, last: int, final: Array | None) -> Array:
    nothing = np.zeros_like(earlier[0])
    parts: dict[str, Array] = {
        "carry": earlier[last],
        "first": earlier[0],
        "final": nothing if final is None else final,
    }
    if "vector" in how:
        parts["vector"] = np.broadcast_to(earlier[0].sum(axis=-1, keepdims=True), earlier[0].shape)
    if "sum" in how:
        parts["sum"] = np.sum(earlier, axis=0)
    total: Array = np.sum([parts[part] for part in how.split("+")], axis=0)
    return total


def _truncated(
    strand: Strand,
    head: Array,
    head_h: Array | None,
    head_c: Array | None,
    how: Plan,
    foreign: Strand | _OwnOutputs | None = None,
    **also: Any,
) -> dict[str, Array]:
    """Give every loss step a replica of its own, so that its cotangent can end on its own, and add them up."""
    steps, size, _, batch = head.shape
    alone = np.zeros((steps, size, steps, batch), head.dtype)
    alone[np.arange(steps), :, np.arange(steps)] = head[:, :, 0]
    states = []
    for state in (head_h, head_c):
        spread = None if state is None else np.zeros((size, steps, batch), head.dtype)
        if spread is not None and state is not None:
            spread[:, -1] = state[:, 0]
        states.append(spread)
    grads = _pull(strand, alone, states[0], states[1], how, foreign, replicas=True, **also)
    axis = {"dx": 2, "dh0": 1, "dc0": 1}
    return {name: array.sum(axis=axis.get(name, 0), keepdims=True) for name, array in grads.items()}


class _ResetBefore(GRU):
    """The GRU of Cho et al. (2014): the reset gate acts on the state before the product (Flux's GRUv3).

    Local derivatives: ``r * h`` by the pre-activation of r, ``h'`` by those of z and n and by ``h`` directly, ``r``;
    and the gated state ``r * h`` itself.
    """

    blocks = 6

    def forward(
        self, local: Array, h: Array, c: Array | None, recurrent: Linear, bias_hh: Array, ar: Arithmetic
    ) -> tuple[Array, None]:
        """Take one step."""
        size = len(h)
        a = local[: 3 * size] + bias_hh
        r_z, kept, slope = ar.sigmoid(a[: 2 * size] + recurrent(h)[: 2 * size])
        r, z, not_z = r_z[:size], r_z[size:], kept[size:]
        n, slope_n = ar.tanh(a[2 * size :] + recurrent(r * h)[2 * size :])
        local[...] = np.concatenate([h * slope[:size], (h - n) * slope[size:], not_z * slope_n, z, r, r * h])
        return not_z * n + z * h, None

    def adjoint(self, dh: Array, dc: Array | None, local: Array, to_state: Linear, ar: Arithmetic) -> Pulled:
        """Pull back."""
        gated_by_r, by_z, by_n, by_h, r, _ = local.reshape(6, -1, *local.shape[1:])
        da_n = dh * by_n
        none = np.zeros_like(da_n)
        dgated = to_state(np.concatenate([none, none, da_n]))
        da_r, da_z = dgated * gated_by_r, dh * by_z
        da = np.concatenate([da_r, da_z, da_n])
        return Pulled(da, da, to_state(np.concatenate([da_r, da_z, none])) + dgated * r + dh * by_h, None)

    @staticmethod
    def candidate_rows(local: Array, da_n: Array) -> Array:
        """``dweight_hh`` of the n rows, (R, H, H): there the state is gated."""
        return Exact().outer(da_n, side_by_side(local[:, -len(da_n) :]))


# -- changes of finished gradients -------------------------------------------------------------------------------


def _mapped(names: Iterable[str], change: Callable[[Array], Array]) -> Change:
    chosen = tuple(names)

    def apply(found: Gradients) -> Gradients:
        return found | {name: _each(found[name], change) for name in chosen if name in found}

    return apply


def _each(value: Any, change: Callable[[Array], Array]) -> Any:
    if isinstance(value, tuple):
        return tuple(tuple(change(array) for array in directions) for directions in value)
    return change(value)


def _rows(permutation: Sequence[int], gates: int) -> Callable[[Array], Array]:
    def permute(array: Array) -> Array:
        split = array.reshape(gates, -1, *array.shape[1:])
        result: Array = split[list(permutation)].reshape(array.shape)
        return result

    return permute


def _transposed(array: Array) -> Array:
    """Transpose each gate's square block."""
    size = array.shape[1]
    if array.shape[0] % size:
        return array
    result: Array = np.swapaxes(array.reshape(-1, size, size), 1, 2).reshape(array.shape)
    return result


# -- the catalogue -----------------------------------------------------------------------------------------------


def _one(name: str, **changes: Any) -> Callable[[Case], Iterator[Fault]]:
    def variants(case: Case) -> Iterator[Fault]:
        yield Fault(name, "", tuple(changes.items()))

    return variants


def _places(case: Case) -> list[tuple[int, int]]:
    return list(itertools.product(range(case.layers), range(case.directions)))


def _place(place: tuple[int, int], case: Case) -> str:
    words = [f"layer {place[0]}"] if case.layers > 1 else []
    words += [("forward", "reverse")[place[1]] + " direction"] if case.bidirectional else []
    return ", ".join(words)


def _dropped(case: Case) -> Iterator[Fault]:
    places = _places(case)
    some: list[tuple[str, tuple[tuple[int, int], ...]]] = []
    if len(places) > 1:
        some += [(f"in {_place(place, case)}", (place,)) for place in places]
    if case.layers > 1 and case.bidirectional:
        for layer in range(case.layers):
            some.append((f"in layer {layer}", tuple(place for place in places if place[0] == layer)))
        for direction in (0, 1):
            chosen = tuple(place for place in places if place[1] == direction)
            some.append((f"in the {('forward', 'reverse')[direction]} direction", chosen))
    for change, but in ((("recurrent", False), ""), (("reach", 1), "but for the initial state")):
        yield Fault("recurrent-term-dropped", but, (change,))
        for where, chosen in some:
            yield Fault("recurrent-term-dropped", " ".join(filter(None, [where, but])), (change, ("strands", chosen)))


def _truncations(case: Case) -> Iterator[Fault]:
    if case.seq_len <= MAX_TRUNCATION:
        for steps in range(2, case.seq_len):
            yield Fault("truncated", f"after {steps} steps", (("reach", steps),))


def _gate_orders(case: Case) -> Iterator[Fault]:
    letters = {"lstm": "ifgo", "gru": "rzn"}.get(case.mode, "")
    names = (*WEIGHTS, *BIASES)
    for permutation in itertools.permutations(range(len(letters))):
        if permutation != tuple(range(len(letters))):
            order = " ".join(letters[i] for i in permutation)
            change = _mapped(names, _rows(permutation, len(letters)))
            yield Fault("gate-order-permuted", f"rows come as {order}", (("after", (change,)),))


def _bias_faults(name: str, factor: float) -> Callable[[Case], Iterator[Fault]]:
    def variants(case: Case) -> Iterator[Fault]:
        for names in (BIASES, BIASES[:1], BIASES[1:]):
            change = _mapped(names, lambda array: array * factor)
            yield Fault(name, "" if len(names) == 2 else names[0][1:], (("after", (change,)),))

    return variants


def _reset_before(case: Case) -> Iterator[Fault]:
    if case.mode == "gru":
        yield Fault("gru-reset-before-product", "", (("cell", _ResetBefore()),))


def _vector_state(case: Case) -> Iterator[Fault]:
    if case.batch > 1:
        yield Fault("forward-order-vector-state", "", (("order", "forward"), ("vector", True)))


def _absorbed_and_reset(case: Case) -> Iterator[Fault]:
    name = "forward-order-absorbed-and-reset"
    yield Fault(name, "", (("order", "absorbed"), ("state", "first+carry")))
    if case.batch > 1:
        detail = "one state vector for the whole batch"
        yield Fault(name, detail, (("order", "absorbed"), ("state", "vector+carry")))


def _batch_means(case: Case) -> Iterator[Fault]:
    if case.batch > 1:
        everything = ("dx", *WEIGHTS, *BIASES, *STATES)
        for names, detail in ((everything, ""), ((*WEIGHTS, *BIASES), "in the parameters' gradients")):
            change = _mapped(names, lambda array: array / case.batch)
            yield Fault("batch-mean-for-sum", detail, (("after", (change,)),))


def _other_direction(case: Case) -> Iterator[Fault]:
    if case.bidirectional:
        places = _places(case)
        both = tuple((place, (place[0], 1 - place[1])) for place in places)
        yield Fault("inputs-of-the-other-direction", "", (("foreign", both),))
        for pair in both:
            yield Fault("inputs-of-the-other-direction", f"in {_place(pair[0], case)}", (("foreign", (pair,)),))


def _other_layer(case: Case) -> Iterator[Fault]:
    for place in _places(case):
        for other in range(case.layers):
            if other != place[0]:
                detail = f"layer {other}'s in {_place(place, case)}"
                yield Fault("inputs-of-another-layer", detail, (("foreign", ((place, (other, place[1])),)),))


def _own_outputs(case: Case) -> Iterator[Fault]:
    choices: list[tuple[str, tuple[int, ...]]] = [(f"in layer {layer}", (layer,)) for layer in range(1, case.layers)]
    if case.layers > 3:
        choices.insert(0, ("in all layers but the first and the last", tuple(range(1, case.layers - 1))))
    if case.layers > 2:
        choices.append(("in all layers but the first", tuple(range(1, case.layers))))
    for detail, layers in choices:
        yield Fault("own-outputs-as-inputs", detail, (("own_outputs", layers),))


def _transposes(case: Case) -> Iterator[Fault]:
    for names in (WEIGHTS[1:], WEIGHTS[:1], WEIGHTS):
        change = _mapped(names, _transposed)
        yield Fault("transposed-weight-gradient", " ".join(name[1:] for name in names), (("after", (change,)),))


def _zero(array: Array) -> Array:
    return np.zeros_like(array)


def _reversed(array: Array) -> Array:
    return array[::-1]


def _double(array: Array) -> Array:
    return array * 2


_DIAGONAL = "diagonal right, everything below it wrongly zero"
_ANTICAUSAL = "diagonal right, below it wrongly zero, above it wrongly non-zero"
_MAP_RIGHT = "the map is right; the parameters' gradients are wrong"

CATALOGUE: dict[str, Kind] = {
    "recurrent-term-dropped": Kind("the recurrent term is dropped", MXNET, _DIAGONAL, _dropped),
    "forward-order": Kind(
        "the adjoint recursion runs forward in time (the state's cotangent flows from step t-1 into step t)",
        FLUX,
        _ANTICAUSAL,
        _one("forward-order", order="forward"),
    ),
    "forward-order-absorbed": Kind(
        "the adjoint recursion runs forward in time, and the initial state's slot absorbs the first step's cotangent",
        FLUX,
        _ANTICAUSAL + "; nothing comes from step 0",
        _one("forward-order-absorbed", order="absorbed", state="first"),
    ),
    "forward-order-absorbed-and-reset": Kind(
        "the adjoint recursion runs forward in time, the initial state's slot absorbs the first step's cotangent, and "
        "reset! adds the last one's",
        FLUX,
        _ANTICAUSAL + "; nothing comes from step 0",
        _absorbed_and_reset,
    ),
    "forward-order-vector-state": Kind(
        "the adjoint recursion runs forward in time, and the first cotangent, of one state vector for the whole batch, "
        "is its sum over the batch",
        FLUX,
        _ANTICAUSAL + ", and wrong across the batch",
        _vector_state,
    ),
    "counted-repeatedly": Kind(
        "each step's share is counted again for every step pulled back after it (a running total is summed)",
        FLUX,
        _MAP_RIGHT,
        _one("counted-repeatedly", counted=1, state="final+sum"),
    ),
    "counted-repeatedly-and-once-more": Kind(
        "each step's share is counted again for every step pulled back after it, and the total once more",
        FLUX,
        _MAP_RIGHT,
        _one("counted-repeatedly-and-once-more", counted=2, state="final+sum+carry"),
    ),
    "initial-state-counted-repeatedly": Kind(
        "the initial state's gradient is the sum of its running total over the steps",
        FLUX,
        "the map is right; dh0 is wrong",
        _one("initial-state-counted-repeatedly", state="final+sum+carry"),
    ),
    "truncated": Kind(
        "backpropagation through time is truncated: a cotangent ends early",
        "",
        "a band of right blocks along the diagonal, wrongly zero below it",
        _truncations,
    ),
    "last-head-only": Kind(
        "only the last step's head gradients count",
        "",
        "the last row right, all others wrongly zero",
        _one("last-head-only", last_head=True),
    ),
    "initial-state-gradient-missing": Kind(
        "the initial state's gradient is missing (zero)",
        "",
        "the map is right; dh0 is zero",
        _one("initial-state-gradient-missing", after=(_mapped(STATES, _zero),)),
    ),
    "batch-mean-for-sum": Kind(
        "the mean over the batch is taken for the sum",
        "",
        "every block too small by the batch size, or none",
        _batch_means,
    ),
    "gate-order-permuted": Kind("the gates' rows are in another order", "", _MAP_RIGHT, _gate_orders),
    "gru-reset-before-product": Kind(
        "the GRU's reset gate acts before the product, not after it",
        "",
        "every block wrong, the outputs too",
        _reset_before,
    ),
    "bias-doubled": Kind("the bias gradient is doubled", "", _MAP_RIGHT, _bias_faults("bias-doubled", 2.0)),
    "bias-halved": Kind("the bias gradient is halved", "", _MAP_RIGHT, _bias_faults("bias-halved", 0.5)),
    "bias-missing": Kind("the bias gradient is missing (zero)", "", _MAP_RIGHT, _bias_faults("bias-missing", 0.0)),
    "inputs-of-the-other-direction": Kind(
        "the weight gradient is summed with the other direction's inputs", "", _MAP_RIGHT, _other_direction
    ),
    "inputs-of-another-layer": Kind(
        "the weight gradient is summed with another layer's inputs", "", _MAP_RIGHT, _other_layer
    ),
    "own-outputs-as-inputs": Kind(
        "the input weights' gradient is summed with the layer's own outputs in place of the outputs below",
        "",
        _MAP_RIGHT,
        _own_outputs,
    ),
    "time-reversed": Kind(
        "the input gradient is reversed in time",
        "",
        "the map is mirrored left to right",
        _one("time-reversed", after=(_mapped(("dx",), _reversed),)),
    ),
    "transposed-weight-gradient": Kind(
        "the weight gradient's square blocks are transposed", "", _MAP_RIGHT, _transposes
    ),
    "buffer-not-cleared": Kind(
        "a gradient buffer is not cleared between two calls: the second result holds the first too",
        "",
        "every block doubled",
        _one("buffer-not-cleared", after=(_mapped(("dx", *WEIGHTS, *BIASES, *STATES), _double),)),
    ),
    "buffer-added-to-itself": Kind(
        "each step adds the parameters' gradient buffer to itself before it adds its own share",
        "",
        _MAP_RIGHT,
        _one("buffer-added-to-itself", doubling=True),
    ),
    "float32-intermediates": Kind(
        "a float64 result carries float32 rounding: something in between is computed in float32",
        "",
        "every block off by about 1e-7 of its size",
        lambda case: iter(()),
    ),
    "nothing-returned": Kind(
        "no gradient is returned at all (Zygote's nothing)",
        "",
        "no values",
        lambda case: iter(()),
    ),
}
"""Every kind of fault, simplest first; a match prefers the earlier."""

FLOAT32 = Fault("float32-intermediates", "", ())
"""Changes no gradient but for the rounding in it, which a match allows for."""

_FLOWS = (
    "recurrent-term-dropped", "forward-order", "forward-order-absorbed", "forward-order-absorbed-and-reset",
    "forward-order-vector-state", "counted-repeatedly", "counted-repeatedly-and-once-more", "last-head-only",
    "initial-state-counted-repeatedly", "batch-mean-for-sum", "gru-reset-before-product",
)  # fmt: skip
"""Faults that are tried as the first of a pair."""


def variants(case: Case) -> Iterator[Fault]:
    """Yield every fault that a case can show, simplest first."""
    for kind in CATALOGUE.values():
        yield from kind.variants(case)


# -- matching ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Match:
    """What explains a backend's wrong gradients on a case.

    Attributes
    ----------
    quantities : the disagreeing quantities that it is about.
    faults : one or two; empty when unexplained.
    residual : largest absolute deviation of the backend from the fault's own gradients.
    others : further faults that cannot be told apart from it on this case.
    closest : for an unexplained one, the fault that comes closest.
    """

    quantities: tuple[str, ...]
    faults: tuple[Fault, ...]
    residual: float
    others: tuple[str, ...] = ()
    closest: tuple[Fault, ...] = ()
    name: str = ""

    @property
    def fault(self) -> str:
        """The name for a table."""
        if self.name:
            return self.name
        return " + ".join(map(str, self.faults)) if self.faults else UNEXPLAINED

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the faults, without their parameters."""
        return (self.name,) if self.name else tuple(fault.name for fault in self.faults)


@dataclasses.dataclass(frozen=True)
class Seen:
    """A backend's judged answer to a task, with the truth it was judged by."""

    truth: Truth
    quantities: Mapping[str, Judged]

    @property
    def task(self) -> Task:
        """The task, from the state that the backend really started from."""
        return self.truth.task


class _Search:
    """A search for the fault behind one backend's wrong quantities, which remembers what came closest."""

    def __init__(
        self, matcher: Matcher, seen: Sequence[Seen], wrong: tuple[str, ...], framework: str, first: bool
    ) -> None:
        self.matcher, self.seen, self.wrong, self.framework, self.first = matcher, seen, wrong, framework, first
        self.best: tuple[float, tuple[Fault, ...]] = (float("inf"), ())

    def among(self, candidates: Iterable[tuple[Fault, ...]]) -> Match | None:
        """Return the first candidate that reproduces every value, with those that cannot be told apart from it."""
        matching: list[tuple[tuple[Fault, ...], float]] = []
        for faults in candidates:
            excess, residual = self.matcher.compare(self.seen, faults, self.wrong)
            if excess <= SLACK:
                matching.append((faults, residual))
                if self.first:
                    break
            elif excess < self.best[0]:
                self.best = (excess, faults)
        if not matching:
            return None
        matching.sort(key=lambda pair: not _known_in(self.framework, pair[0]))
        first, residual = matching[0]
        kinds = [fault.name for fault in first]
        others = [faults for faults, _ in matching[1:] if [fault.name for fault in faults] != kinds]
        return Match(self.wrong, first, residual, tuple(" + ".join(map(str, faults)) for faults in others))

    def nothing(self) -> Match:
        """Return that nothing matched, with what came closest and how far off it is."""
        closest = self.best[1]
        residual = float("nan")
        if closest:
            residual = self.matcher.compare(self.seen, closest, self.wrong, through=True)[1]
        return Match(self.wrong, (), residual, closest=closest)


class Matcher:
    """Finds faults; keeps each case's faulty gradients, which all backends share."""

    def __init__(self) -> None:
        self.tapes: dict[tuple[str, int], Tape] = {}
        self.known: dict[tuple[Any, ...], Gradients] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.coarse: dict[tuple[Any, ...], Truth] = {}

    def diagnose(self, seen: Sequence[Seen], framework: str = "", quick: bool = False) -> list[Match]:
        """Explain a backend's disagreements on one case, over all tasks at once.

        Where several faults match alike, the one that is known in ``framework`` comes first. ``quick`` is for many
        cases: single faults, without truncations of long sequences, then pairs of those known in ``framework``, then
        float32 rounding; the first that matches.

        Every value the backend gave must be reproduced within tolerance, the right ones too. Quantities for which it
        returned ``nothing``, or that were not repeatable, are explained apart.
        """
        fits = {id(judged): _fits(judged, one.truth.dtype) for one in seen for judged in one.quantities.values()}
        wrong = _names(seen, lambda judged: judged.verdict in WRONG and fits[id(judged)])
        if not wrong:
            return []
        nothing = _names(seen, lambda judged: judged.verdict in WRONG and judged.nothing)
        unsteady = _names(seen, lambda judged: judged.verdict == NOT_REPEATABLE)
        found = []
        if nothing:
            found.append(Match(nothing, (), 0.0, name="nothing-returned"))
        if unsteady:
            found.append(_unsteady(seen, unsteady))
        rest = tuple(name for name in wrong if name not in nothing and name not in unsteady)
        if rest:
            found.append(self._explain(seen, rest, framework, quick))
        return found

    def _explain(self, seen: Sequence[Seen], wrong: tuple[str, ...], framework: str, quick: bool) -> Match:
        case = seen[0].task.case
        search = _Search(self, seen, wrong, framework, quick)
        if found := search.among(self._quick_singles(case, framework) if quick else self._singles(case)):
            return found
        known = (pair for pair in self._flow_pairs(case) if pair[0].name != pair[1].name and _known_in(framework, pair))
        if found := search.among(known):
            return found
        if case.dtype == "float64" and (found := self._in_float32(seen, wrong, framework)):
            return found
        if quick:
            return Match(wrong, (), float("nan"))
        found = search.among(self._flow_pairs(case)) or search.among(self._other_pairs(case))
        return found or search.nothing()

    def _in_float32(self, seen: Sequence[Seen], wrong: tuple[str, ...], framework: str) -> Match | None:
        """Explain by float32 rounding, alone or beside another fault, where it does not swallow the values."""
        coarse = [_coarse(one, self._float32_truth(one.task)) for one in seen]
        if any(_swallowed(one, wrong) for one in coarse):
            return None
        candidates = ((FLOAT32,), *((*one, FLOAT32) for one in self._quick_singles(seen[0].task.case, framework)))
        return _Search(self, coarse, wrong, framework, first=True).among(candidates)

    def _float32_truth(self, task: Task) -> Truth:
        key = (task.case.digest(), task.seq_len, task.loss_step, task.accumulate)
        if key not in self.coarse:
            self.coarse[key] = truth(task, "float32")
        return self.coarse[key]

    def _singles(self, case: Case) -> Iterator[tuple[Fault, ...]]:
        for fault in self._variants(case):
            yield (fault,)

    def _quick_singles(self, case: Case, framework: str) -> Iterator[tuple[Fault, ...]]:
        tried = [fault for fault in self._variants(case) if fault.name != "truncated" or case.seq_len <= QUICK_STEPS]
        yield from sorted(((fault,) for fault in tried), key=lambda one: not _known_in(framework, one))

    def _flow_pairs(self, case: Case) -> Iterator[tuple[Fault, ...]]:
        yield from itertools.combinations([fault for fault in self._variants(case) if fault.name in _FLOWS], 2)

    def _other_pairs(self, case: Case) -> Iterator[tuple[Fault, ...]]:
        every = self._variants(case)
        flows = [fault for fault in every if fault.name in _FLOWS]
        yield from itertools.product(flows, [fault for fault in every if fault.name not in _FLOWS])

    def _variants(self, case: Case) -> list[Fault]:
        digest = case.digest()
        if digest not in self.faults:
            self.faults[digest] = list(variants(case))
        return self.faults[digest]

    def compare(
        self, seen: Sequence[Seen], faults: tuple[Fault, ...], wrong: tuple[str, ...], through: bool = False
    ) -> tuple[float, float]:
        """Return the worst deviation in tolerances, and in absolute terms; stops early unless ``through``."""
        excess = residual = 0.0
        for one in seen:
            found = self._gradients(one.task, faults)
            if found is None:
                return float("inf"), float("nan")
            ordered = sorted(one.quantities, key=lambda name: name not in wrong)
            for name in ordered:
                judged = one.quantities[name]
                if not judged.has_values:
                    continue
                deviation, absolute = _deviation(judged, found[name], float(np.finfo(one.truth.dtype).eps))
                excess, residual = max(excess, deviation), max(residual, absolute if name in wrong else 0.0)
                if excess > SLACK and not through:
                    return excess, residual
        return excess, residual

    def _gradients(self, task: Task, faults: tuple[Fault, ...]) -> Gradients | None:
        digest = task.case.digest()
        merged = plan(faults)
        if merged is None:
            return None
        passes = tuple(str(fault) for fault in faults if any(name != "after" for name, _ in fault.changes))
        key = (digest, task.seq_len, task.loss_step, task.accumulate, passes)
        if key not in self.known:
            tape_key = (digest, task.seq_len)
            if tape_key not in self.tapes:
                self.tapes[tape_key] = Tape(task.case, task.seq_len, Exact())
            self.known[key] = compute(task, merged, self.tapes[tape_key])
        return changed(self.known[key], merged)


def alike(task: Task, one: str, other: str) -> bool:
    """Whether a case cannot tell two faults apart: what the one gives matches the other, by the measure of a match.

    Parameters
    ----------
    task : Task
    one : a fault, or two, as :attr:`Match.fault` writes them.
    other : names of faults joined by ``+``, whose parameters may be any.
    """
    every = [*variants(task.case), FLOAT32]
    mine = tuple(fault for text in one.split(" + ") for fault in every if str(fault) == text)
    names = other.split("+")
    if (FLOAT32 in mine) != (FLOAT32.name in names) or not mine:
        return False  # coarse rounding would swallow what the other says
    found = gradients(task, mine)
    if found is None:
        return False
    known = truth(task, "float32" if FLOAT32 in mine else None)
    seen = Seen(known, {name: judge(name, Answer(found[name]), known) for name in task.case.quantities})
    matcher = Matcher()
    theirs = itertools.product(*([fault for fault in every if fault.name == name] for name in names))
    return any(matcher.compare([seen], faults, task.case.quantities)[0] <= SLACK for faults in theirs)


def _known_in(framework: str, faults: Sequence[Fault]) -> bool:
    return bool(framework) and all(framework.lower() in CATALOGUE[fault.name].report.lower() for fault in faults)


def _fits(judged: Judged, dtype: str) -> bool:
    """Whether the true values fit the dtype; a backend that overflows where they do not has no fault."""
    top = max((float(np.max(np.abs(block.reference))) for block in judged.blocks), default=0.0)
    return judged.verdict != NOT_FINITE or top <= float(np.finfo(dtype).max)


def _names(seen: Sequence[Seen], test: Callable[[Judged], bool]) -> tuple[str, ...]:
    names = [name for one in seen for name, judged in one.quantities.items() if test(judged)]
    return tuple(dict.fromkeys(names))


def _deviation(judged: Judged, found: Any, eps: float) -> tuple[float, float]:
    """Worst deviation of a quantity's values from a fault's, in tolerances and in absolute terms.

    Tolerances are the true gradient's, grown with the fault's where that is larger, and rounding of the fault's own.
    """
    worst = absolute = 0.0
    for block, (_, _, array) in zip(judged.blocks, blocks(found), strict=True):
        expected = array.sum(axis=1, keepdims=True) if judged.batch_summed else array
        known = ~np.isnan(block.value)
        if not known.any():
            continue
        with np.errstate(all="ignore"):
            error = np.abs(block.value - expected)[known]
            top = float(np.abs(block.reference).max())
            grown = max(1.0, float(np.abs(expected).max()) / top) if top else 1.0
            level = float(np.median(block.tolerance))
            rounding = 16 * eps * float(np.abs(expected).max())
            ratio = error / (np.maximum(block.tolerance[known], level) * grown + rounding)
        if not np.isfinite(error).all():
            return float("inf"), float("inf")
        worst, absolute = max(worst, float(ratio.max())), max(absolute, float(error.max()))
    return worst, absolute


def _coarse(one: Seen, known: Truth) -> Seen:
    """Give what was seen the tolerances of float32."""
    quantities = {}
    for name, judged in one.quantities.items():
        slack = known.tolerance(name, judged.batch_summed) if judged.blocks else []
        widened = [dataclasses.replace(b, tolerance=t) for b, t in zip(judged.blocks, slack, strict=True)]
        quantities[name] = dataclasses.replace(judged, blocks=tuple(widened))
    return Seen(known, quantities)


def _swallowed(one: Seen, wrong: Sequence[str]) -> bool:
    """Whether the tolerance is as large as all the wrong quantities themselves."""
    blocks = [b for name in wrong if name in one.quantities for b in one.quantities[name].blocks]
    return bool(blocks) and swamped([b.reference for b in blocks], [b.tolerance for b in blocks])


def _unsteady(seen: Sequence[Seen], names: tuple[str, ...]) -> Match:
    """Explain two identical calls that differ: the second may be twice the first."""
    residual, doubled = 0.0, True
    for one in seen:
        for name in names:
            judged = one.quantities.get(name)
            if judged is None or not judged.again:
                continue
            for block, first, second in zip(judged.blocks, judged.first, judged.again, strict=True):
                with np.errstate(all="ignore"):
                    error = np.abs(second - 2 * first)
                doubled &= bool((error <= 4 * block.tolerance).all())
                doubled &= not swamped([first], [block.tolerance])  # garbage in the noise is no double
                residual = max(residual, float(error.max()))
    name = "buffer-not-cleared" if doubled else UNEXPLAINED
    return Match(names, (), residual if doubled else float("nan"), name=name)
