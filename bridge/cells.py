"""One step of each cell, forward and its hand-written adjoint, in NumPy.

Shapes: H hidden units, G gates, R replicas, B batch. States are columns (H, R, B), input projections (G*H, R, B). Gate
order ``i f g o`` and ``r z n``.

The forward step leaves its *local derivatives* behind, how each pre-activation acts on the next state: all that the
adjoint needs, in no more room than the gates themselves take.

The formulas are those of the cuDNN documentation (RNN functions) and ``torch.nn.LSTM``/``GRU``; LSTM after Hochreiter
and Schmidhuber (1997) with the forget gate of Gers et al. (2000), GRU after Cho et al. (2014) with the reset gate
behind the product.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from bridge.arithmetic import Arithmetic, Array, Linear


class Pulled(NamedTuple):
    """An adjoint step: cotangents of the two projections, (G*H, R, B), and of the earlier states."""

    inputs: Array
    hidden: Array
    h: Array
    c: Array | None


class Cell(Protocol):
    """A recurrent cell.

    Attributes
    ----------
    joint_bias : both biases act as one sum, so they may be added beforehand.
    blocks : K, how many blocks of H local derivatives a step has; at least G.
    """

    joint_bias: bool
    blocks: int

    def forward(
        self, local: Array, h: Array, c: Array | None, recurrent: Linear, bias_hh: Array, ar: Arithmetic
    ) -> tuple[Array, Array | None]:
        """Take one step to the next ``h`` and ``c``.

        ``local`` (K*H, R, B) holds the step's input projection in its first G*H rows, and its local derivatives
        afterwards; ``recurrent`` multiplies by ``weight_hh``, ``bias_hh`` is (G*H, 1, 1).
        """

    def adjoint(self, dh: Array, dc: Array | None, local: Array, to_state: Linear, ar: Arithmetic) -> Pulled:
        """Pull the cotangents of the next states back through the step; ``to_state`` multiplies by ``weight_hh.T``."""


class Elman:
    """``h' = act(W_ih x + b_ih + W_hh h + b_hh)``. Local derivative: ``act'``."""

    joint_bias = True
    blocks = 1

    def __init__(self, activation: str) -> None:
        self.activation = activation

    def forward(
        self, local: Array, h: Array, c: Array | None, recurrent: Linear, bias_hh: Array, ar: Arithmetic
    ) -> tuple[Array, None]:
        """Take one step; ``bias_hh`` is in the projection already."""
        a = ar.rounded(local + recurrent(h))
        if self.activation == "tanh":
            a, local[...] = ar.tanh(a)
        elif self.activation == "relu":
            np.greater(a, 0, out=local)
            a *= local
        return a, None

    def adjoint(self, dh: Array, dc: Array | None, local: Array, to_state: Linear, ar: Arithmetic) -> Pulled:
        """Pull back; at a ReLU's kink the slope is 0, as frameworks have it."""
        da = dh if self.activation == "identity" else ar.rounded(dh * local)
        return Pulled(da, da, to_state(da), None)


class LSTM:
    """``c' = f * c + i * g``, ``h' = o * tanh(c')``; i, f, o logistic and g tanh of the summed projections.

    Local derivatives: ``c'`` by the pre-activations of i, f and g, ``h'`` by that of o and by ``c'``, ``c'`` by ``c``.
    """

    joint_bias = True
    blocks = 6

    def forward(
        self, local: Array, h: Array, c: Array | None, recurrent: Linear, bias_hh: Array, ar: Arithmetic
    ) -> tuple[Array, Array]:
        """Take one step; ``bias_hh`` is in the projection already."""
        size = len(h)
        a = local[: 4 * size]
        a += recurrent(h)
        ar.rounded(a)
        i_f, _, slope_i_f = ar.sigmoid(a[: 2 * size])
        g, slope_g = ar.tanh(a[2 * size : 3 * size])
        o, _, slope_o = ar.sigmoid(a[3 * size :])
        i, f = i_f[:size], i_f[size:]
        assert c is not None
        later = ar.rounded(f * c)
        later += ar.rounded(i * g)
        squashed, slope_c = ar.tanh(ar.rounded(later))
        by_i, by_f, by_g, by_o, by_c, kept = local.reshape(6, size, *local.shape[1:])
        np.multiply(g, slope_i_f[:size], out=by_i)
        np.multiply(c, slope_i_f[size:], out=by_f)
        np.multiply(i, slope_g, out=by_g)
        np.multiply(squashed, slope_o, out=by_o)
        ar.rounded(np.multiply(o, slope_c, out=by_c))
        kept[...] = f
        o *= squashed
        return ar.rounded(o), later

    def adjoint(self, dh: Array, dc: Array | None, local: Array, to_state: Linear, ar: Arithmetic) -> Pulled:
        """Pull back."""
        by = local.reshape(6, -1, *local.shape[1:])
        through = ar.rounded(dh * by[4])
        through += dc
        dc = ar.rounded(through)
        da = np.empty((4, *dc.shape), dc.dtype)
        np.multiply(dc, by[:3], out=da[:3])
        np.multiply(dh, by[3], out=da[3])
        da = ar.rounded(da.reshape(-1, *dc.shape[1:]))
        return Pulled(da, da, to_state(da), ar.rounded(dc * by[5]))


class GRU:
    """``h' = (1 - z) * n + z * h`` with ``n = tanh(W_in x + b_in + r * (W_hn h + b_hn))``.

    Local derivatives: ``h'`` by the pre-activations of r, z and n, by ``W_hn h + b_hn``, and by ``h`` directly.
    """

    joint_bias = False
    blocks = 5

    def forward(
        self, local: Array, h: Array, c: Array | None, recurrent: Linear, bias_hh: Array, ar: Arithmetic
    ) -> tuple[Array, None]:
        """Take one step."""
        size = len(h)
        hidden = recurrent(h)
        hidden += bias_hh
        ar.rounded(hidden)
        candidate = hidden[2 * size :]
        r_z, kept, slope = ar.sigmoid(ar.rounded(local[: 2 * size] + hidden[: 2 * size]))
        r, z, not_z = r_z[:size], r_z[size:], kept[size:]
        n, slope_n = ar.tanh(ar.rounded(local[2 * size : 3 * size] + ar.rounded(r * candidate)))
        later = ar.rounded(ar.rounded(not_z * n) + ar.rounded(z * h))
        by_r, by_z, by_n, by_candidate, by_h = local.reshape(5, size, *local.shape[1:])
        ar.rounded(np.multiply(not_z, slope_n, out=by_n))
        ar.rounded(np.multiply(by_n, candidate, out=by_r))
        by_r *= slope[:size]
        np.multiply(h - n, slope[size:], out=by_z)
        ar.rounded(np.multiply(by_n, r, out=by_candidate))
        by_h[...] = z
        return later, None

    def adjoint(self, dh: Array, dc: Array | None, local: Array, to_state: Linear, ar: Arithmetic) -> Pulled:
        """Pull back."""
        by = local.reshape(5, -1, *local.shape[1:])
        da = ar.rounded(dh * by[:4])
        inputs, hidden = (rows.reshape(-1, *dh.shape[1:]) for rows in (da[:3], np.concatenate((da[:2], da[3:]))))
        earlier = to_state(hidden)
        earlier += ar.rounded(dh * by[4])
        return Pulled(inputs, hidden, ar.rounded(earlier), None)


CELLS: dict[str, Cell] = {
    "rnn_tanh": Elman("tanh"),
    "rnn_relu": Elman("relu"),
    "rnn_identity": Elman("identity"),
    "lstm": LSTM(),
    "gru": GRU(),
}
"""The cell of each mode."""
