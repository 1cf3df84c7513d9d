"""Verdicts: silent on right values, loud on wrong ones, honest where nothing can be told."""

import numpy as np
import pytest
from random_cases import random_case
from sensitivity import Caught

import bridge
from bridge.answers import Answer, Task
from bridge.case import MODES, Case, Weights
from bridge.tolerance import truth
from bridge.verdicts import judge


def known_case(mode="lstm", dtype="float32", seed=0, **fixed):
    case = random_case(np.random.default_rng(seed), mode=mode, dtype=dtype, **fixed)
    return case, truth(Task(case, case.seq_len))


def cases(count, **fixed):
    for index in range(count):
        rng = np.random.default_rng([11, index])
        case = random_case(rng, mode=MODES[index % 5], dtype=("float32", "float64")[index // 5 % 2], **fixed)
        everything = ("x", "params", "h0", "c0")[: 4 if case.mode == "lstm" else 3]
        yield case.replace(requested=everything)


def test_the_reference_in_the_cases_own_dtype_agrees():
    for case in cases(60):
        known = truth(Task(case, case.seq_len))
        ours = bridge.reference.gradients(case, dtype=case.dtype)
        for quantity in case.quantities:
            judged = judge(quantity, Answer(ours[quantity]), known)
            assert judged.verdict == "agrees", (case, quantity, judged.reason)


def one_after_another(terms):
    """Sum over the first axis as a plain loop does: of equal terms, all the errors have one sign."""
    return np.cumsum(terms, axis=0, dtype=np.float32)[-1]


def plain_elman(case):
    """A right gradient of a tanh network of one layer in float32, every sum one term after another."""
    wi, wh, bi, bh = (array.astype(np.float32) for array in case.params[0][0])
    x, h0, head = (array.astype(np.float32) for array in (case.x, case.h0[0], case.heads()[0]))

    def times(columns, rows):
        return one_after_another(columns.T[:, None] * rows.T[..., None])

    h = [h0]
    for step in x:
        h.append(np.tanh(times(wi, step) + bi + times(wh, h[-1]) + bh))
    dh, da, dx = np.zeros_like(h0), [], []
    for t in reversed(range(len(x))):
        da.insert(0, (head[t] + dh) * (1 - h[t + 1] ** 2))
        dx.insert(0, times(wi.T, da[0]))
        dh = times(wh.T, da[0])
    rows, inputs, earlier = (np.concatenate(steps) for steps in (da, x, h[:-1]))
    found = {
        "dweight_ih": one_after_another(rows[..., None] * inputs[:, None]),
        "dweight_hh": one_after_another(rows[..., None] * earlier[:, None]),
        "dbias_ih": one_after_another(rows),
        "dbias_hh": one_after_another(rows),
    }
    return {"y": np.stack(h[1:]), "dx": np.stack(dx), "dh0": dh[None]} | {k: ((v,),) for k, v in found.items()}


def test_steps_sequences_and_units_that_round_alike_agree():
    for index in range(400):
        rng = np.random.default_rng([13, index])
        steps, batch, inputs, hidden = (int(rng.integers(1, top)) for top in (41, 9, 33, 9))

        def equal(*shape, rng=rng):
            return np.full(shape, rng.integers(-10, 11) / 10)

        case = Case(
            name="equal",
            mode="rnn_tanh",
            dtype="float32",
            x=equal(steps, batch, inputs),
            params=((Weights(*(equal(hidden, n) / 10 for n in (inputs, hidden)), equal(hidden), equal(hidden)),),),
            h0=equal(1, batch, hidden),
            requested=("x", "params", "h0"),
        )
        known = truth(Task(case, steps))
        for quantity, values in plain_elman(case).items():
            judged = judge(quantity, Answer(values), known)
            assert judged.verdict == "agrees", (index, quantity, judged.reason)


def test_small_errors_are_caught_as_often_as_promised():
    caught = {dtype: Caught(dtype) for dtype in ("float32", "float64")}
    for case in cases(200):
        caught[case.dtype].add(case, truth(Task(case, case.seq_len)))
    for one in caught.values():
        assert one.large_quiet > 10_000, one
        assert one.large_quiet_caught == one.large_quiet, one
    assert caught["float32"].medium_caught >= 0.94 * caught["float32"].medium, caught["float32"]
    assert caught["float64"].medium_caught >= 0.99 * caught["float64"].medium, caught["float64"]


def test_one_wrong_element_among_many_right_ones_disagrees():
    case, known = known_case(T=20, H=8)
    right = bridge.reference.gradients(case)
    wrong = right["dx"].copy()
    worst = np.unravel_index(np.argmax(np.abs(wrong)), wrong.shape)
    wrong[worst] *= 1 + 1e-3
    judged = judge("dx", Answer(wrong), known)
    assert judged.verdict == "disagrees"
    assert judged.count("disagrees") == 1
    assert judge("dx", Answer(right["dx"]), known).verdict == "agrees"


def test_weights_of_a_layer_disagree_alone():
    case, known = known_case("gru", layers=2, bidirectional=True)
    right = bridge.reference.gradients(case)
    blocks = [list(row) for row in right["dweight_hh"]]
    blocks[1][0] = blocks[1][0] * 1.01
    judged = judge("dweight_hh", Answer(tuple(map(tuple, blocks))), known)
    assert [(b.layer, b.direction) for b in judged.blocks if (b.verdict == 1).any()] == [(1, 0)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_have_a_verdict_of_their_own(bad):
    case, known = known_case()
    wrong = bridge.reference.gradients(case)["dx"].copy()
    wrong[0, 0, 0] = bad
    judged = judge("dx", Answer(wrong), known)
    assert judged.verdict == "not finite"
    assert "the reference is finite" in judged.reason


def test_nothing_is_not_a_zero():
    _, known = known_case()
    judged = judge("dh0", Answer(nothing=True), known)
    assert judged.verdict == "disagrees"
    assert judged.nothing
    assert all(np.isnan(block.value).all() for block in judged.blocks)
    assert "nothing" in judged.reason


def test_nothing_agrees_where_the_truth_is_zero():
    case = bridge.load_case("flux-1547").replace(head=np.zeros((2, 1, 1)))
    judged = judge("dh0", Answer(nothing=True), truth(Task(case, 2)))
    assert (judged.verdict, judged.reason) == ("agrees", "nothing returned, and the truth is zero")


def test_a_case_that_cannot_tell_says_so():
    case = random_case(
        np.random.default_rng(3), mode="gru", layers=4, bidirectional=True, T=40, H=16, scale=2.0, dtype="float32"
    )
    known = truth(Task(case, 40))
    judged = judge("dx", Answer(bridge.reference.gradients(case)["dx"]), known)
    assert judged.verdict == "agrees"
    assert "cannot tell" in judged.reason


def test_a_batch_summed_state_gradient_is_judged_as_such():
    case, known = known_case(B=3)
    right = bridge.reference.gradients(case)["dh0"].sum(axis=1, keepdims=True)
    assert judge("dh0", Answer(right, batch_summed=True), known).verdict == "agrees"
    assert judge("dh0", Answer(right * 1.001, batch_summed=True), known).verdict == "disagrees"


def test_elements_a_framework_cannot_express_are_unsupported_alone():
    case, known = known_case("gru", layers=1, bidirectional=False)
    right = bridge.reference.gradients(case)["dbias_hh"][0][0].copy()
    right[-1] = np.nan
    judged = judge("dbias_hh", Answer(((right,),), inexpressible=True), known)
    assert (judged.verdict, judged.count("unsupported")) == ("agrees", 1)
    right[0] += 1
    assert judge("dbias_hh", Answer(((right,),), inexpressible=True), known).verdict == "disagrees"
    assert judge("dbias_hh", Answer(((right * np.nan,),), inexpressible=True), known).verdict == "unsupported"


def test_tolerance_is_the_same_every_time():
    case, known = known_case()
    again = truth(Task(case, case.seq_len))
    assert all(
        (a == b).all() for q in case.quantities for a, b in zip(known.tolerance(q), again.tolerance(q), strict=True)
    )


def test_gradients_far_below_and_above_one_are_judged_by_their_own_noise():
    for scale in (1e-220, 1e-3, 1e220):
        case = random_case(np.random.default_rng(9), mode="rnn_tanh", dtype="float64", T=5, H=3, head="given")
        case = case.replace(head=np.array(case.head) * scale, requested=("x", "params"))
        known, right = truth(Task(case, 5)), bridge.reference.gradients(case)
        for quantity in case.quantities[1:]:
            assert judge(quantity, Answer(right[quantity]), known).reason == ""
        assert judge("dx", Answer(right["dx"] * (1 + 1e-11)), known).verdict == "disagrees"


def test_what_does_not_fit_the_dtype_is_said_to_be_beyond_its_range():
    case = random_case(np.random.default_rng(9), mode="rnn_identity", dtype="float32", T=4, layers=1, head="ones")
    case = case.replace(x=np.full(case.x.shape, 3e38), requested=("x",))
    judged = judge(
        "y", Answer(np.full((4, case.batch, case.directions * case.hidden_size), np.inf)), truth(Task(case, 4))
    )
    assert judged.verdict == "not finite"
    assert "beyond the range of float32" in judged.reason


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_saturated_cell_whose_derivative_rounds_to_zero_is_right(dtype):
    """``1 - h**2`` of an ``h`` that rounds to 1 is zero, in whatever dtype; the noise of every step must know that."""
    for steps in range(20, 80):
        fixed = {"mode": "rnn_tanh", "layers": 1, "bidirectional": False, "T": steps, "H": 1, "B": 1}
        case = random_case(np.random.default_rng(steps), dtype=dtype, head="ones", **fixed)
        (weights,) = case.params[0]
        bias = np.full_like(weights.bias_ih, -20 if dtype == "float64" else -10)
        weights = weights._replace(bias_ih=bias, weight_hh=0 * weights.weight_hh)
        case = case.replace(params=[[weights]], requested=("x",))
        h = np.tanh(case.x @ weights.weight_ih.T + bias + weights.bias_hh)
        dx = (1 - h * h) @ weights.weight_ih
        assert judge("dx", Answer(dx), truth(Task(case, steps))).verdict == "agrees", steps
