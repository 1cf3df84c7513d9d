"""The reference: backpropagation through time (Werbos 1990) over layers, directions and steps, in NumPy.

No framework is in it. ``tests/test_reference.py`` proves it by complex-step differentiation. Inside, sequences are
columns (T, N, R, B), see :mod:`bridge.arithmetic`; answers are (T, R, B, N).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from bridge.arithmetic import Arithmetic, Array, Exact
from bridge.case import PARAM_NAMES, Case, Weights
from bridge.cells import CELLS, Cell

Nested = tuple[tuple[Array, ...], ...]
"""One array per layer and direction: ``value[layer][direction]``."""

PullStrand = Callable[[tuple[int, int], "Strand", Array, Array | None, Array | None], dict[str, Array]]
"""Pulls cotangents of the outputs and final states back through a strand, as :meth:`Strand.pull` does."""

Gradients = dict[str, Any]
"""Quantity -> array, or :data:`Nested` for the parameters' quantities."""

_unbounded: np.errstate[Any] = np.errstate(over="ignore", invalid="ignore")
"""An identity RNN may outgrow its dtype: the answer is then infinite, or NaN, and says so itself."""


def gradients(
    case: Case, seq_len: int | None = None, loss_step: int | None = None, *, dtype: DTypeLike = np.float64
) -> Gradients:
    """Outputs and every gradient of a case.

    Parameters
    ----------
    case : Case
    seq_len : int, optional
        Run the first ``seq_len`` steps of ``x``; all by default.
    loss_step : int, optional
        0-based step s: the loss reads output s alone (see :meth:`Case.heads`). The whole head by default.
    dtype : float64 or float32
        What to compute and answer in.

    Returns
    -------
    dict
        ``y (T, B, D*H)``, ``dx (T, B, I)``, ``dh0`` and, for LSTM, ``dc0`` ``(layers*D, B, H)``; ``dweight_ih``,
        ``dweight_hh``, ``dbias_ih``, ``dbias_hh`` as ``[layer][direction]``, shaped like the parameters.

    Raises
    ------
    BadInputError
        For a length or loss step that the case does not have.
    """
    head_y, head_hn, head_cn = case.heads(seq_len, loss_step)
    tape = Tape(case, len(head_y), Exact(), np.dtype(dtype))
    return without_replicas(tape.pull(*tape.cotangents(head_y, head_hn, head_cn)))


def without_replicas(found: Mapping[str, Any], index: int = 0) -> Gradients:
    """Pick one replica of what :meth:`Tape.pull` returns."""
    return {
        name: (
            tuple(tuple(block[index] for block in blocks) for blocks in value)
            if isinstance(value, tuple)
            else value[:, index]
        )
        for name, value in found.items()
    }


def accumulated(found: Gradients, times: int) -> Gradients:
    """Every gradient times ``times``, as after so many passes that add up; the outputs stay."""
    if times == 1:
        return found
    return {
        name: value
        if name == "y"
        else tuple(tuple(times * block for block in blocks) for blocks in value)
        if isinstance(value, tuple)
        else times * value
        for name, value in found.items()
    }


class Tape:
    """The forward pass of a case, kept so that cotangents can be pulled back through it, any number of times.

    Parameters
    ----------
    case : Case
    seq_len : int
        Steps to run.
    arithmetic : Arithmetic
        :class:`~bridge.arithmetic.Exact`, or noisy with R replicas.
    dtype : numpy dtype
        float64 or float32.
    cell : Cell, optional
        A cell to use instead of the mode's.

    Attributes
    ----------
    y : array, (T, R, B, D*H)
    layers : list of arrays, (T, D*H, R, B)
        What each layer gives to the next; the case's ``x`` comes first.
    strands : ``[layer][direction]``
    """

    @_unbounded
    def __init__(
        self,
        case: Case,
        seq_len: int,
        arithmetic: Arithmetic,
        dtype: DTypeLike = np.float64,
        cell: Cell | None = None,
    ) -> None:
        self.case, self.arithmetic, self.dtype = case, arithmetic, np.dtype(dtype)
        self.cell: Cell = cell or CELLS[case.mode]
        self.layers = [self._columns(case.x[:seq_len])]
        self.strands: list[list[Strand]] = []
        h0, c0 = self._columns(case.h0), self._columns(case.c0)
        rows = case.hidden_size * case.directions
        for layer, directions in enumerate(case.params):
            outputs = np.empty((seq_len, rows, arithmetic.replicas, case.batch), self.dtype)
            strands = []
            for direction, weights in enumerate(directions):
                index = layer * case.directions + direction
                start = (h0[index], None if c0 is None else c0[index])
                weights = Weights(*(array.astype(self.dtype, copy=False) for array in weights))
                inputs, h = (_in_time(each, direction) for each in (self.layers[-1], self._half(outputs, direction)))
                strands.append(Strand(self.cell, weights, inputs, start, arithmetic, h))
            self.strands.append(strands)
            self.layers.append(outputs)
        self.y = _rows(outputs)

    def _columns(self, array: Any) -> Any:
        """(T, B, N) -> (T, N, 1, B), in the tape's dtype."""
        return None if array is None else array.astype(self.dtype, copy=False).swapaxes(1, 2)[:, :, None]

    def _half(self, array: Array, direction: int) -> Array:
        """Rows of a layer's outputs that belong to a direction."""
        size = self.case.hidden_size
        return array[:, direction * size : (direction + 1) * size]

    def cotangents(
        self, head_y: Array, head_hn: Array | None, head_cn: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """Make columns of head gradients as from :meth:`Case.heads`, in the tape's dtype."""
        return self._columns(head_y), self._columns(head_hn), self._columns(head_cn)

    @_unbounded
    def pull(
        self,
        head_y: Array,
        head_hn: Array | None = None,
        head_cn: Array | None = None,
        through: PullStrand | None = None,
        parameters: bool = True,
    ) -> dict[str, Any]:
        """Pull head gradients back.

        Parameters
        ----------
        head_y : array, (T, D*H, R, B)
        head_hn, head_cn : array, (layers * D, H, R, B), optional
        through : what pulls each strand back, given its (layer, direction); :meth:`Strand.pull` by default.
        parameters : whether :meth:`Strand.pull` gives the parameters' gradients.

        Returns
        -------
        dict like that of :func:`gradients`, with the replica axis second in sequences and states and first in
        parameters.
        """
        case = self.case
        above = head_y
        pulled: list[list[dict[str, Array]]] = []
        for layer in reversed(range(case.layers)):
            found = []
            for direction, strand in enumerate(self.strands[layer]):
                index = layer * case.directions + direction
                cotangents = (
                    _in_time(self._half(above, direction), direction),
                    None if head_hn is None else head_hn[index],
                    None if head_cn is None else head_cn[index],
                )
                found.append(
                    through((layer, direction), strand, *cotangents)
                    if through
                    else strand.pull(*cotangents, parameters)
                )
            above = found[0].pop("dx")
            if len(found) == 2:
                above += found[1].pop("dx")[::-1]
                self.arithmetic.rounded(above)
            pulled.append(found)
        pulled.reverse()
        result: dict[str, Any] = {"y": self.y, "dx": _rows(above)}
        for name in (f"d{name}" for name in PARAM_NAMES):
            if name in pulled[0][0]:
                result[name] = tuple(tuple(grads[name] for grads in found) for found in pulled)
        for name in ("dh0", "dc0"):
            if name in pulled[0][0]:
                result[name] = _rows(np.stack([grads[name] for found in pulled for grads in found]))
        return result


class Strand:
    """One layer in one direction over all steps, in its own order of time: forward pass on creation, then adjoints.

    It keeps the outputs and each step's local derivatives, (K + 1) * H numbers a step and sequence with K of
    :attr:`bridge.cells.Cell.blocks`.

    Parameters
    ----------
    cell : Cell
    weights : Weights
    inputs : array, (T, I, R, B)
    start : h0 and c0 (or None), (H, R, B)
    arithmetic : Arithmetic
    h : array, (T, H, R, B)
        Where the outputs go.

    Attributes
    ----------
    local : array, (T, K*H, R, B)
        Local derivatives, see :mod:`bridge.cells`.
    end : final h and c (or None), (H, R, B)
    """

    def __init__(
        self,
        cell: Cell,
        weights: Weights,
        inputs: Array,
        start: tuple[Array, Array | None],
        arithmetic: Arithmetic,
        h: Array,
    ) -> None:
        self.cell, self.weights, self.inputs, self.start, self.h = cell, weights, inputs, start, h
        self.arithmetic = ar = arithmetic
        steps, size, *across = h.shape
        self.local = np.empty((steps, cell.blocks * size, *across), h.dtype)
        from_inputs, recurrent = ar.linear(weights.weight_ih), ar.linear(weights.weight_hh)
        bias_ih, bias_hh = weights.bias_ih[:, None, None], weights.bias_hh[:, None, None]
        at_once = max(1, Exact.columns // math.prod(across))
        for first in range(0, steps, at_once):
            part = slice(first, first + at_once)
            projected = self.local[part, : len(bias_ih)]
            np.add(_apart(from_inputs(side_by_side(inputs[part])), across[-1]), bias_ih, out=projected)
            ar.rounded(projected)
            if cell.joint_bias:
                projected += bias_hh
                ar.rounded(projected)
        state, c = start
        for t, local in enumerate(self.local):
            h[t], c = cell.forward(local, state, c, recurrent, bias_hh, ar)
            state = h[t]
        self.end = (state, c)

    def pull(
        self, head: Array, head_h: Array | None, head_c: Array | None, parameters: bool = True
    ) -> dict[str, Array]:
        """Pull the cotangents of the outputs (T, H, R, B) and of the final states (H, R, B) back.

        Steps after the last cotangent need no work and get none; without ``parameters``, whose gradients are then left
        out, each replica has its own last step.
        """
        ar, weights, (steps, _, heads, batch) = self.arithmetic, self.weights, head.shape
        replicas = max(heads, ar.replicas)
        to_inputs, to_state = ar.linear(weights.weight_ih.T), ar.linear(weights.weight_hh.T)
        reached = _reached(head, whole=parameters or heads == 1, final=head_h is not None or head_c is not None)
        head = np.broadcast_to(head, (*head.shape[:2], replicas, batch))
        dx = np.empty((steps, *self.inputs.shape[1:2], replicas, batch), head.dtype)
        if not reached.all():
            dx[...] = 0
        grads: dict[str, Array] = {}
        dh, dc, before = head_h, head_c, slice(0, replicas)
        for first, stop, live in _stretches(reached, replicas, max(1, ar.columns // (replicas * batch))):
            dh, dc, before = _widened(dh, before, live), _widened(dc, before, live), live
            if dc is None and self.start[1] is not None:
                dc = np.zeros_like(head[0][:, live])
            inputs, hidden = [], []
            for t in reversed(range(first, stop)):
                total = head[t][:, live] if dh is None else ar.rounded(head[t][:, live] + dh)
                da_in, da_hid, dh, dc = self.cell.adjoint(total, dc, self.local[t], to_state, ar)
                inputs.append(da_in)
                hidden.append(da_hid)
            da_in = side_by_side(inputs[::-1])
            dx[first:stop, :, live] = _apart(to_inputs(da_in), batch)
            if parameters:
                da_hid = da_in if hidden[0] is inputs[0] else side_by_side(hidden[::-1])
                for name, share in self.weight_gradients(da_in, da_hid, first, stop).items():
                    grads[name] = ar.rounded(grads[name] + share) if name in grads else share
        assert dh is not None
        return grads | {"dx": dx, "dh0": dh} | ({} if dc is None else {"dc0": dc})

    def weight_gradients(self, da_in: Array, da_hid: Array, first: int, stop: int) -> dict[str, Array]:
        """Sum the contributions of steps ``first`` to ``stop``, whose cotangents are side by side, (G*H, R, steps*B).

        Results are (R, ...).
        """
        ar = self.arithmetic
        earlier = [self.h[t - 1] if t else np.broadcast_to(self.start[0], self.h[0].shape) for t in range(first, stop)]
        one = np.ones((1, 1, da_in.shape[-1]), da_in.dtype)
        grads = {
            "dweight_ih": ar.outer(da_in, side_by_side(self.inputs[first:stop])),
            "dweight_hh": ar.outer(da_hid, side_by_side(earlier)),
            "dbias_ih": ar.outer(da_in, one)[..., 0],
        }
        grads["dbias_hh"] = grads["dbias_ih"] if da_hid is da_in else ar.outer(da_hid, one)[..., 0]
        return grads


def side_by_side(steps: Sequence[Array] | Array) -> Array:
    """Make columns of several steps, (N, R, B) each, columns of one longer batch, (N, R, steps*B)."""
    return np.concatenate(list(steps), axis=-1)


def _apart(columns: Array, batch: int) -> Array:
    """Inverse of :func:`side_by_side`: (steps, N, R, B)."""
    return columns.reshape(*columns.shape[:2], -1, batch).transpose(2, 0, 1, 3)


def _rows(columns: Array) -> Array:
    """(..., N, R, B) -> (..., R, B, N)."""
    return columns.swapaxes(-3, -2).swapaxes(-2, -1)


def _in_time(sequence: Array, direction: int) -> Array:
    """Put a sequence into the order in which a direction (1: reverse) goes through it."""
    return sequence[::-1] if direction else sequence


def _reached(head: Array, whole: bool, final: bool) -> Array:
    """Whether a cotangent of this or a later step reaches each replica, (T, R), or with ``whole`` any of them, (T, 1).

    Step 0 always counts as reached, so that there is something to answer.
    """
    steps = np.arange(len(head))[:, None]
    if final:
        return steps < len(head)
    if whole:
        return steps <= next((t for t in reversed(range(len(head))) if head[t].any()), 0)
    reached = head.any(axis=(1, 3)) | (steps == 0)
    return np.logical_or.accumulate(reached[::-1])[::-1]


def _stretches(reached: Array, replicas: int, most: int) -> Iterator[tuple[int, int, slice]]:
    """Yield (first step, stop, live replicas), last first: at most so many steps reached by the same replicas."""
    first, last = reached.argmax(axis=1).tolist(), reached[:, ::-1].argmax(axis=1).tolist()
    steps = reversed(range(int(reached.any(axis=1).sum())))
    for (low, high), group in itertools.groupby(steps, key=lambda t: (first[t], last[t])):
        run = list(group)
        for index in range(0, len(run), most):
            part = run[index : index + most]
            yield part[-1], part[0] + 1, slice(low, replicas - high)


def _widened(cotangent: Array | None, old: slice, new: slice) -> Array | None:
    """Give replicas that are reached from now on a cotangent of zero."""
    if cotangent is None or old == new:
        return cotangent
    wide = np.zeros((len(cotangent), new.stop - new.start, cotangent.shape[2]), cotangent.dtype)
    wide[:, old.start - new.start : old.stop - new.start] = cotangent
    return wide
