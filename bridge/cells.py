"""One step of each cell, forward and its hand-written adjoint, in NumPy.

Shapes: R replicas, B batch, H hidden units, G gates. ``inputs`` is the step's input projection (R, B, G*H), states
are (R, B, H), ``recurrent`` is ``weight_hh`` transposed (H, G*H). Gate order ``i f g o`` and ``r z n``.

The formulas are those of the cuDNN documentation (RNN functions) and ``torch.nn.LSTM``/``GRU``; LSTM after Hochreiter
and Schmidhuber (1997) with the forget gate of Gers et al. (2000), GRU after Cho et al. (2014) with the reset gate
behind the product.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from bridge.arithmetic import Arithmetic, Array


class Stepped(NamedTuple):
    """A forward step: the next states and what the adjoint needs."""

    h: Array
    c: Array | None
    saved: tuple[Any, ...]


class Pulled(NamedTuple):
    """An adjoint step: cotangents of the two projections, and what reaches the earlier states directly.

    ``inputs`` and ``hidden`` are (R, B, G*H); the state's whole cotangent is ``hidden @ weight_hh`` plus ``h``.
    """

    inputs: Array
    hidden: Array
    h: Array | None
    c: Array | None


class Cell(Protocol):
    """A recurrent cell. ``joint_bias``: both biases act as one sum, so they may be added beforehand."""

    joint_bias: bool

    def forward(
        self, inputs: Array, h: Array, c: Array | None, recurrent: Array, bias_hh: Array, ar: Arithmetic
    ) -> Stepped:
        """Take one step."""

    def adjoint(self, dh: Array, dc: Array | None, saved: tuple[Any, ...], ar: Arithmetic) -> Pulled:
        """Pull the cotangents of the next states back through the step."""


class Elman:
    """``h' = act(W_ih x + b_ih + W_hh h + b_hh)``."""

    joint_bias = True

    def __init__(self, activation: str) -> None:
        self.activation = activation

    def forward(
        self, inputs: Array, h: Array, c: Array | None, recurrent: Array, bias_hh: Array, ar: Arithmetic
    ) -> Stepped:
        """Take one step; ``bias_hh`` is in ``inputs`` already."""
        a = ar.rounded(inputs + ar.product(h, recurrent))
        if self.activation == "tanh":
            value, slope = ar.tanh(a)
        elif self.activation == "relu":
            slope = (a > 0).astype(a.dtype)
            value = a * slope
        else:
            value, slope = a, None
        return Stepped(value, None, (slope,))

    def adjoint(self, dh: Array, dc: Array | None, saved: tuple[Any, ...], ar: Arithmetic) -> Pulled:
        """Pull back; at a ReLU's kink the slope is 0, as frameworks have it."""
        (slope,) = saved
        da = dh if slope is None else ar.rounded(dh * slope)
        return Pulled(da, da, None, None)


class LSTM:
    """``c' = f * c + i * g``, ``h' = o * tanh(c')``; i, f, o logistic and g tanh of the summed projections."""

    joint_bias = True

    def forward(
        self, inputs: Array, h: Array, c: Array | None, recurrent: Array, bias_hh: Array, ar: Arithmetic
    ) -> Stepped:
        """Take one step; ``bias_hh`` is in ``inputs`` already."""
        a = ar.rounded(inputs + ar.product(h, recurrent))
        size = a.shape[-1] // 4
        i_f, _, d_i_f = ar.sigmoid(a[..., : 2 * size])
        g, d_g = ar.tanh(a[..., 2 * size : 3 * size])
        o, _, d_o = ar.sigmoid(a[..., 3 * size :])
        i, f = i_f[..., :size], i_f[..., size:]
        later = ar.rounded(ar.rounded(f * c) + ar.rounded(i * g))
        squashed, d_squashed = ar.tanh(later)
        return Stepped(ar.rounded(o * squashed), later, (c, i, f, g, o, d_i_f, d_g, d_o, squashed, d_squashed))

    def adjoint(self, dh: Array, dc: Array | None, saved: tuple[Any, ...], ar: Arithmetic) -> Pulled:
        """Pull back."""
        c, i, f, g, o, d_i_f, d_g, d_o, squashed, d_squashed = saved
        size = i.shape[-1]
        dc = ar.rounded(dc + ar.rounded(ar.rounded(dh * o) * d_squashed))
        da = np.empty((*dc.shape[:-1], 4 * size), dc.dtype)
        np.multiply(dc, g, out=da[..., :size])
        np.multiply(dc, c, out=da[..., size : 2 * size])
        np.multiply(dc, i, out=da[..., 2 * size : 3 * size])
        np.multiply(dh, squashed, out=da[..., 3 * size :])
        da[..., : 2 * size] *= d_i_f
        da[..., 2 * size : 3 * size] *= d_g
        da[..., 3 * size :] *= d_o
        da = ar.rounded(da)
        return Pulled(da, da, None, ar.rounded(dc * f))


class GRU:
    """``h' = (1 - z) * n + z * h`` with ``n = tanh(W_in x + b_in + r * (W_hn h + b_hn))``."""

    joint_bias = False

    def forward(
        self, inputs: Array, h: Array, c: Array | None, recurrent: Array, bias_hh: Array, ar: Arithmetic
    ) -> Stepped:
        """Take one step."""
        hidden = ar.rounded(ar.product(h, recurrent) + bias_hh)
        size = h.shape[-1]
        r_z, kept, d_r_z = ar.sigmoid(ar.rounded(inputs[..., : 2 * size] + hidden[..., : 2 * size]))
        r, z, not_z = r_z[..., :size], r_z[..., size:], kept[..., size:]
        candidate = hidden[..., 2 * size :]
        n, d_n = ar.tanh(ar.rounded(inputs[..., 2 * size :] + ar.rounded(r * candidate)))
        later = ar.rounded(ar.rounded(not_z * n) + ar.rounded(z * h))
        return Stepped(later, None, (h, r, z, not_z, n, candidate, d_r_z, d_n))

    def adjoint(self, dh: Array, dc: Array | None, saved: tuple[Any, ...], ar: Arithmetic) -> Pulled:
        """Pull back."""
        h, r, z, not_z, n, candidate, d_r_z, d_n = saved
        size = r.shape[-1]
        da_n = ar.rounded(ar.rounded(dh * not_z) * d_n)
        da = np.empty((*da_n.shape[:-1], 3 * size), da_n.dtype)
        np.multiply(da_n, candidate, out=da[..., :size])
        np.multiply(dh, h - n, out=da[..., size : 2 * size])
        da[..., : 2 * size] *= d_r_z
        da = ar.rounded(da)
        da[..., 2 * size :] = da_n
        hidden = da.copy()
        hidden[..., 2 * size :] = ar.rounded(da_n * r)
        return Pulled(da, hidden, ar.rounded(dh * z), None)


CELLS: dict[str, Cell] = {
    "rnn_tanh": Elman("tanh"),
    "rnn_relu": Elman("relu"),
    "rnn_identity": Elman("identity"),
    "lstm": LSTM(),
    "gru": GRU(),
}
"""The cell of each mode."""
