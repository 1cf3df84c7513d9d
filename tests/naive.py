"""A recurrent network written straight from its equations, for complex arguments. Shares no code with ``bridge``.

Plain loops over layers, directions, sequences and steps; for the proof of the reference, see test_reference.py. Every
array has an axis N in front: N copies of the network, one perturbed number each (1 where nothing is perturbed).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def logistic(a: Any) -> Any:
    # By the sign of the real part, so that exp cannot overflow; both forms are analytic.
    positive = np.real(a) >= 0
    e = np.exp(np.where(positive, -a, a))
    return np.where(positive, 1 / (1 + e), e / (1 + e))


def times(matrix: Any, vector: Any) -> Any:
    return (matrix * vector[:, None, :]).sum(axis=-1)


def step(mode: str, x: Any, h: Any, c: Any, weights: dict[str, Any]) -> tuple[Any, Any]:
    """One step of one sequence: x (N, I), h and c (N, H)."""
    from_x = times(weights["weight_ih"], x) + weights["bias_ih"]
    from_h = times(weights["weight_hh"], h) + weights["bias_hh"]
    if mode == "lstm":
        i, f, g, o = np.split(from_x + from_h, 4, axis=-1)
        c = logistic(f) * c + logistic(i) * np.tanh(g)
        return logistic(o) * np.tanh(c), c
    if mode == "gru":
        r_x, z_x, n_x = np.split(from_x, 3, axis=-1)
        r_h, z_h, n_h = np.split(from_h, 3, axis=-1)
        z, not_z = logistic(z_x + z_h), logistic(-(z_x + z_h))  # 1 - z would cancel in a saturated gate
        n = np.tanh(n_x + logistic(r_x + r_h) * n_h)
        return not_z * n + z * h, c
    a = from_x + from_h
    if mode == "rnn_tanh":
        return np.tanh(a), c
    if mode == "rnn_relu":
        return np.where(np.real(a) > 0, a, 0 * a), c
    assert mode == "rnn_identity"
    return a, c


def forward(mode: str, x: Any, params: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any]:
    """Outputs y (N, T, B, D*H), final h and c (N, layers * D, B, H) of x (N, T, B, I); params[layer][direction][name].

    The cell state is carried along in every mode; it means something in an LSTM.
    """
    length, batch = x.shape[1:3]
    h_n, c_n = [], []
    below = x
    for directions in params:
        sides = []
        for direction, weights in enumerate(directions):
            order = range(length - 1, -1, -1) if direction else range(length)
            index = len(h_n)
            outputs: list[list[Any]] = [[None] * batch for _ in range(length)]
            finals = []
            for b in range(batch):
                h, c = h0[:, index, b], c0[:, index, b]
                for t in order:
                    h, c = step(mode, below[:, t, b], h, c, weights)
                    outputs[t][b] = h
                finals.append((h, c))
            h_n.append(stack([h for h, _ in finals]))
            c_n.append(stack([c for _, c in finals]))
            sides.append(stack([stack(row) for row in outputs]))
        below = np.concatenate(np.broadcast_arrays(*sides), axis=-1)
    return below, stack(h_n), stack(c_n)


def stack(arrays: list[Any]) -> Any:
    return np.stack(np.broadcast_arrays(*arrays), axis=1)


def complex_step(
    mode: str, x: Any, params: Any, h0: Any, c0: Any, heads: tuple[Any, Any, Any], h: float = 1e-30
) -> dict[str, Any]:
    """Every gradient of ``sum(head_y * y) + sum(head_hn * h_n) + sum(head_cn * c_n)``; a head of None counts nothing.

    Arrays come without the axis N; keys and shapes are those of ``bridge.reference.gradients``.
    """
    arrays = {"dx": x, "dh0": h0, "dc0": np.zeros(h0.shape) if c0 is None else c0}
    cells = [(k, d, cell) for k, directions in enumerate(params) for d, cell in enumerate(directions)]
    arrays |= {(k, d, key): value for k, d, cell in cells for key, value in cell.items()}
    arrays = {place: np.array(value, complex)[None] for place, value in arrays.items()}

    def run() -> tuple[Any, Any, Any]:
        nested = [
            [{key: arrays[k, d, key] for key in cell} for d, cell in enumerate(directions)]
            for k, directions in enumerate(params)
        ]
        return forward(mode, arrays["dx"], nested, arrays["dh0"], arrays["dc0"])

    def sensitivity(place: Any) -> Any:
        kept = arrays[place]
        copies = np.repeat(kept, kept.size, axis=0)
        copies.reshape(kept.size, -1)[np.diag_indices(kept.size)] += 1j * h
        arrays[place] = copies
        outputs = run()
        arrays[place] = kept
        total = np.zeros(kept.size)
        for head, output in zip(heads, outputs, strict=True):
            if head is not None:
                total = total + (head * np.imag(output)).reshape(len(output), -1).sum(axis=1)
        return (total / h).reshape(kept.shape[1:])

    found = {"y": np.real(run()[0])[0], "dx": sensitivity("dx"), "dh0": sensitivity("dh0")}
    if c0 is not None:
        found["dc0"] = sensitivity("dc0")
    for key in params[0][0]:
        found[f"d{key}"] = tuple(
            tuple(sensitivity((k, d, key)) for d in range(len(directions))) for k, directions in enumerate(params)
        )
    return found
