"""Hypothesis strategies for cases: for property tests of one's own implementation, and for a sweep's shrinking.

::

    from hypothesis import given
    from bridge import strategies

    @given(strategies.cases(modes=["gru"], max_layers=2))
    def test_my_gru(case): ...

Numbers are multiples of 0.1 between -1 and 1, so that a shrunk case reads well. Half of the GRUs have no bias inside
the reset gate's product (``bias_hh``'s n rows), as in Flux.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import strategies as st

from bridge.case import DTYPES, GATES, MODES, REQUESTABLE, Case, Weights
from bridge.space import without_reset_bias

HEADS = ("ones", "last", "given", "given and final states")


def cases(
    *,
    modes: Sequence[str] = MODES,
    dtypes: Sequence[str] = DTYPES,
    max_layers: int = 4,
    bidirectional: Sequence[bool] = (False, True),
    max_seq_len: int = 40,
    max_batch: int = 8,
    max_input_size: int = 32,
    max_hidden_size: int = 32,
    requested: Sequence[str] | None = None,
    heads: Sequence[str] = HEADS,
    min_layers: int = 1,
    min_seq_len: int = 1,
) -> st.SearchStrategy[Case]:
    """Draw cases within bounds; they shrink towards one layer, one step, one unit, and zeros.

    Parameters
    ----------
    modes, dtypes, bidirectional : what to draw from; the first is the simplest.
    min_layers, max_layers, min_seq_len, max_seq_len, max_batch, max_input_size, max_hidden_size : inclusive bounds.
    requested : the gradients asked for; all subsets of what the mode has by default.
    heads : kinds of head gradients out of :data:`HEADS`.
    """

    @st.composite
    def draw_case(draw: st.DrawFn) -> Case:
        mode, dtype = draw(st.sampled_from(list(modes))), draw(st.sampled_from(list(dtypes)))
        layers = draw(st.integers(min_layers, max_layers))
        directions = 1 + draw(st.sampled_from(list(bidirectional)))
        length = draw(st.integers(min_seq_len, max_seq_len))
        batch, inputs, hidden = (draw(st.integers(1, top)) for top in (max_batch, max_input_size, max_hidden_size))
        head = draw(st.sampled_from(list(heads)))
        possible = REQUESTABLE if mode == "lstm" else REQUESTABLE[:3]
        wanted = requested or draw(st.lists(st.sampled_from(possible), min_size=1, unique=True))

        def array(*shape: int) -> Any:
            return draw(_tenths(shape))

        states = (layers * directions, batch, hidden)
        final = head == "given and final states"
        case = Case(
            name=f"drawn-{mode}",
            mode=mode,
            dtype=dtype,
            x=array(length, batch, inputs),
            params=tuple(
                tuple(
                    Weights(
                        *(array(*shape) for shape in _shapes(mode, directions * hidden if layer else inputs, hidden))
                    )
                    for _ in range(directions)
                )
                for layer in range(layers)
            ),
            h0=array(*states),
            c0=array(*states) if mode == "lstm" else None,
            head=array(length, batch, directions * hidden) if head.startswith("given") else head,
            head_hn=array(*states) if final else None,
            head_cn=array(*states) if final and mode == "lstm" else None,
            requested=tuple(wanted),
        )
        return without_reset_bias(case) if mode == "gru" and not draw(st.booleans()) else case

    return draw_case()


def _shapes(mode: str, inputs: int, hidden: int) -> tuple[tuple[int, ...], ...]:
    rows = GATES[mode] * hidden
    return (rows, inputs), (rows, hidden), (rows,), (rows,)


def _tenths(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    whole = hnp.arrays(np.int64, shape, elements=st.integers(-10, 10), fill=st.integers(-10, 10))
    return whole.map(lambda numbers: numbers / 10)
