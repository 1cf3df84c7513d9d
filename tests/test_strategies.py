"""Drawn cases are valid and within bounds, and shrink to the smallest that shows a fault."""

import random

import hypothesis
import numpy as np
from hypothesis import given, settings

from bridge.answers import Task
from bridge.reference import gradients
from bridge.shrinking import shrink
from bridge.space import sample
from bridge.strategies import cases


@given(cases(modes=["gru", "lstm"], max_layers=2, max_seq_len=5, max_hidden_size=4))
@settings(max_examples=50, deadline=None)
def test_drawn_cases_keep_their_bounds(case):
    assert case.mode in ("gru", "lstm")
    assert case.layers <= 2
    assert case.seq_len <= 5
    assert case.hidden_size <= 4
    tenths = 10 * case.x.astype(float)
    assert np.allclose(tenths, np.round(tenths), atol=1e-5)


def test_cases_shrink_to_the_smallest():
    smallest = hypothesis.find(cases(), lambda case: case.layers >= 2 and case.seq_len >= 3, random=random.Random(0))
    assert (smallest.layers, smallest.seq_len, smallest.batch, smallest.hidden_size) == (2, 3, 1, 1)
    assert not smallest.x.any()


def test_shrinking_keeps_what_is_asked_and_finds_the_planted_bound():
    task = next(
        one.task
        for one in (sample(0, index) for index in range(500))
        if one.task.case.layers == 4 and one.task.seq_len > 10 and one.task.accumulate == 2
    )

    def shows(smaller: Task) -> bool:
        return smaller.case.layers >= 3 and smaller.seq_len >= 2 and bool((smaller.case.x != 0).any())

    found = shrink(task, shows)
    case = found.case
    assert (case.mode, case.dtype, case.requested) == (task.case.mode, task.case.dtype, task.case.requested)
    assert found.accumulate == 2
    assert (case.layers, found.seq_len, case.batch, case.input_size, case.hidden_size) == (3, 2, 1, 1, 1)
    assert set(np.unique(case.x)) <= {np.float32(0), np.float32(0.1), np.float32(-0.1), 0.1, -0.1}


def test_what_no_smaller_case_shows_is_left_as_it_was():
    task = sample(0, 3).task
    assert shrink(task, lambda smaller: False, calls=30) is task


def test_what_only_large_values_show_shrinks_among_large_values():
    task = next(
        one.task
        for one in (sample(0, index) for index in range(500))
        if (one.task.case.mode, one.task.case.dtype) == ("rnn_relu", "float64") and one.task.seq_len <= 4
    )

    def shows(smaller: Task) -> bool:
        return bool(np.abs(gradients(smaller.case)["y"]).max() > np.finfo(np.float32).max)

    found = shrink(task, shows, sizes=(1.0, 1e39))
    case = found.case
    assert (case.layers, found.seq_len, case.batch, case.hidden_size) == (1, 1, 1, 1)
    assert 1e38 < np.abs(case.x).max() <= 1e40
