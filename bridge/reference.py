"""The reference: backpropagation through time (Werbos 1990) over layers, directions and steps, in NumPy.

No framework is in it. ``tests/test_reference.py`` proves it by complex-step differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        self.params = tuple(
            tuple(Weights(*(array.astype(self.dtype, copy=False) for array in weights)) for weights in directions)
            for directions in case.params
        )
        h0 = case.h0.astype(self.dtype, copy=False)
        c0 = None if case.c0 is None else case.c0.astype(self.dtype, copy=False)
        below: Array = case.x[:seq_len, None].astype(self.dtype, copy=False)
        self.strands: list[list[Strand]] = []
        for layer, directions in enumerate(self.params):
            strands = []
            for direction, weights in enumerate(directions):
                index = layer * case.directions + direction
                start = (h0[index, None], None if c0 is None else c0[index, None])
                inputs = below[::-1] if direction else below
                strands.append(Strand(self.cell, weights, inputs, start, arithmetic))
            self.strands.append(strands)
            outputs = [strand.h[::-1] if direction else strand.h for direction, strand in enumerate(strands)]
            below = outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=-1)
        self.y = below

    def cotangents(
        self, head_y: Array, head_hn: Array | None, head_cn: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """Give head gradients as from :meth:`Case.heads` the tape's dtype and a replica axis."""
        head_y = head_y[:, None].astype(self.dtype, copy=False)
        states = [None if head is None else head[:, None].astype(self.dtype, copy=False) for head in (head_hn, head_cn)]
        return head_y, states[0], states[1]

    @_unbounded
    def pull(
        self,
        head_y: Array,
        head_hn: Array | None = None,
        head_cn: Array | None = None,
        through: PullStrand | None = None,
    ) -> dict[str, Any]:
        """Pull head gradients back.

        Parameters
        ----------
        head_y : array, (T, R, B, D*H)
        head_hn, head_cn : array, (layers * D, R, B, H), optional
        through : what pulls each strand back, given its (layer, direction); :meth:`Strand.pull` by default.

        Returns
        -------
        dict like that of :func:`gradients`, with the replica axis second in sequences and states and first in
        parameters.
        """
        case, ar = self.case, self.arithmetic
        size = case.hidden_size
        above = head_y
        pulled: list[list[dict[str, Array]]] = []
        states: dict[str, list[Array]] = {"dh0": [], "dc0": []}
        for layer in reversed(range(case.layers)):
            found, flows = [], []
            for direction, strand in enumerate(self.strands[layer]):
                index = layer * case.directions + direction
                head = above[..., direction * size : (direction + 1) * size]
                cotangents = (
                    head[::-1] if direction else head,
                    None if head_hn is None else head_hn[index],
                    None if head_cn is None else head_cn[index],
                )
                grads = through((layer, direction), strand, *cotangents) if through else strand.pull(*cotangents)
                found.append(grads)
                flows.append(grads["dx"][::-1] if direction else grads["dx"])
            above = flows[0] if len(flows) == 1 else ar.rounded(flows[0] + flows[1])
            pulled.append(found)
        pulled.reverse()
        for found in pulled:
            for grads in found:
                for name, blocks in states.items():
                    if name in grads:
                        blocks.append(grads[name])
        result: dict[str, Any] = {"y": self.y, "dx": above}
        for name in PARAM_NAMES:
            result[f"d{name}"] = tuple(tuple(grads[f"d{name}"] for grads in found) for found in pulled)
        return result | {name: np.stack(blocks) for name, blocks in states.items() if blocks}


class Strand:
    """One layer in one direction over all steps, in its own order of time: forward pass on creation, then adjoints.

    Parameters
    ----------
    cell : Cell
    weights : Weights
    inputs : array, (T, R, B, I)
    start : h0 and c0 (or None), (R, B, H)
    arithmetic : Arithmetic

    Attributes
    ----------
    h : array, (T, R, B, H)
        Outputs.
    end : final h and c (or None), (R, B, H)
    """

    def __init__(
        self, cell: Cell, weights: Weights, inputs: Array, start: tuple[Array, Array | None], arithmetic: Arithmetic
    ) -> None:
        self.cell, self.weights, self.inputs, self.start, self.arithmetic = cell, weights, inputs, start, arithmetic
        ar = arithmetic
        projected = ar.rounded(ar.product(inputs, weights.weight_ih.T) + weights.bias_ih)
        if cell.joint_bias:
            projected = ar.rounded(projected + weights.bias_hh)
        recurrent = weights.weight_hh.T
        h, c = start
        self.saved: list[tuple[Any, ...]] = []
        outputs = []
        for step in projected:
            h, c, saved = cell.forward(step, h, c, recurrent, weights.bias_hh, ar)
            self.saved.append(saved)
            outputs.append(h)
        self.h, self.end = np.stack(outputs), (h, c)

    def pull(self, head: Array, head_h: Array | None, head_c: Array | None) -> dict[str, Array]:
        """Pull the cotangents of the outputs (T, R, B, H) and of the final states (R, B, H) back."""
        ar, weights, steps = self.arithmetic, self.weights, len(self.saved)
        dh: Array | None = head_h
        dc = head_c
        if dc is None and self.start[1] is not None:
            dc = np.zeros_like(head[-1])
        inputs: list[Array] = [head[-1]] * steps
        hidden: list[Array] = [head[-1]] * steps
        for t in reversed(range(steps)):
            total = head[t] if dh is None else ar.rounded(head[t] + dh)
            pulled = self.cell.adjoint(total, dc, self.saved[t], ar)
            inputs[t], hidden[t], dc = pulled.inputs, pulled.hidden, pulled.c
            dh = ar.product(pulled.hidden, weights.weight_hh)
            if pulled.h is not None:
                dh = ar.rounded(dh + pulled.h)
        # Broadcast: an identity cell passes its head on as it is, without the replicas that later steps have.
        da_in = np.stack(np.broadcast_arrays(*inputs))
        da_hid = da_in if hidden[0] is inputs[0] else np.stack(np.broadcast_arrays(*hidden))
        grads = self.weight_gradients(da_in, da_hid)
        grads["dx"] = ar.product(da_in, weights.weight_ih)
        assert dh is not None
        grads["dh0"] = dh
        if dc is not None:
            grads["dc0"] = dc
        return grads

    def weight_gradients(self, da_in: Array, da_hid: Array) -> dict[str, Array]:
        """Sum the steps' contributions; cotangents of the projections are (T, R, B, G*H), results (R, ...)."""
        ar = self.arithmetic
        earlier = np.concatenate([np.broadcast_to(self.start[0], self.h[:1].shape), self.h[:-1]])
        left, right = _flat(da_in), _flat(da_hid)
        one = np.ones((1, left.shape[-2], 1), left.dtype)
        grads = {
            "dweight_ih": ar.product(_turn(left), _flat(self.inputs)),
            "dweight_hh": ar.product(_turn(right), _flat(earlier)),
            "dbias_ih": ar.product(_turn(left), one)[..., 0],
        }
        grads["dbias_hh"] = grads["dbias_ih"] if right is left else ar.product(_turn(right), one)[..., 0]
        return grads


def _flat(array: Array) -> Array:
    """(T, R, B, N) -> (R, T*B, N)."""
    steps, replicas, batch, size = array.shape
    return np.moveaxis(array, 1, 0).reshape(replicas, steps * batch, size)


def _turn(array: Array) -> Array:
    return np.swapaxes(array, -1, -2)
