"""Random cases for tests: everything that is not pinned by keyword is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from bridge.case import GATES, Case

HEADS = ("ones", "last", "given", "given+final")
"""Kinds of heads: ``given+final`` gives heads of h_n (and of an LSTM's c_n) too."""


def random_case(rng: np.random.Generator, **fixed: Any) -> Case:
    """Draw a case.

    Pin any of ``mode``, ``layers`` (1-2), ``bidirectional``, ``T`` (1-30), ``B`` (1-3), ``I`` (1-5), ``H`` (1-16),
    ``dtype``, ``scale`` (of the weights, a number), ``head`` (out of HEADS), ``zero_states``, or a field of
    :class:`Case` (``name``, ``requested``, ``seq_lens``, ``source``).
    """

    def draw(key: str, choices: Any) -> Any:
        value = choices[rng.integers(len(choices))]  # drawn even when pinned: the rest stays the same
        return fixed.pop(key, value)

    mode = draw("mode", tuple(GATES))
    layers = draw("layers", (1, 2))
    directions = 1 + draw("bidirectional", (False, True))
    length = draw("T", range(1, 31))
    batch = draw("B", range(1, 4))
    inputs = draw("I", range(1, 6))
    hidden = draw("H", range(1, 17))
    dtype = draw("dtype", ("float32", "float64"))
    scale = draw("scale", (0.1, hidden**-0.5, 0.5, 1.0))
    head = draw("head", HEADS)
    zero_states = draw("zero_states", (True, False))
    requestable = ("x", "params", "h0", "c0") if mode == "lstm" else ("x", "params", "h0")
    requested = tuple(name for name in requestable if rng.random() < 0.5) or requestable

    def normal(*shape: int, times: float = 1.0) -> np.ndarray[Any, Any]:
        return times * rng.standard_normal(shape)

    def weights(size: int) -> dict[str, Any]:
        rows = GATES[mode] * hidden
        shapes = {"weight_ih": (rows, size), "weight_hh": (rows, hidden), "bias_ih": (rows,), "bias_hh": (rows,)}
        return {key: normal(*shape, times=scale) for key, shape in shapes.items()}

    states = (layers * directions, batch, hidden)
    times = 0.0 if zero_states else 1.0
    fields: dict[str, Any] = {
        "name": f"random-{mode}",
        "mode": mode,
        "dtype": dtype,
        "x": normal(length, batch, inputs),
        "params": [
            [weights(directions * hidden if layer else inputs) for _ in range(directions)] for layer in range(layers)
        ],
        "h0": normal(*states, times=times),
        "c0": normal(*states, times=times) if mode == "lstm" else None,
        "head": normal(length, batch, directions * hidden) if head.startswith("given") else head,
        "requested": requested,
    }
    if head == "given+final":
        fields["head_hn"] = normal(*states)
        fields["head_cn"] = normal(*states) if mode == "lstm" else None
    return Case(**(fields | fixed))
