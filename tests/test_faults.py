"""Named faults: a planted one gets its name, a right gradient gets none, a random wrong one stays unexplained."""

import dataclasses

import numpy as np
import pytest
from planting import KINDS, at_random, outcome, seen, unplanted
from random_cases import random_case

import bridge
from bridge.answers import Answer, Task
from bridge.case import MODES, Case, Weights
from bridge.faults import CATALOGUE, Matcher, Seen, gradients, variants
from bridge.reference import Tape
from bridge.tolerance import truth
from bridge.verdicts import judge


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_fault_gets_its_name_or_cannot_be_told_apart(kind):
    found = [
        outcome(np.random.default_rng([2, KINDS.index(kind), index, layers]), kind, mode, layers)
        for index in range(2)
        for mode in MODES
        for layers in (1, 2)
    ]
    shown = [name for name in found if name not in ("absent", "apart: right")]
    assert not [name for name in shown if name.startswith("wrong")]
    assert shown.count("right") >= 0.9 * len(shown)
    assert shown


def test_right_gradients_get_no_name():
    for index in range(100):
        assert unplanted(np.random.default_rng([3, index]), MODES[index % 5], 1 + index % 2) == []


def test_gradients_wrong_at_random_stay_unexplained():
    for index in range(20):
        for match in at_random(np.random.default_rng([4, index]), MODES[index % 5], 1):
            assert match.fault == "unexplained"


def known_case(name):
    case = bridge.load_case(name)
    return case, Task(case, case.seq_len)


@pytest.mark.parametrize(
    ("fault", "dweight_ih", "dweight_hh", "dbias", "dh0"),
    [
        (["forward-order"], 2.8025, 1.001, 2.001, 0.001001),
        (["forward-order-absorbed"], 2.8, 1.0, 2.0, 0.001),
        (["counted-repeatedly"], 5.3003, 2.0, 3.001, 0.002001),
        (["counted-repeatedly-and-once-more"], 8.1006, 3.0, 5.002, 0.003002),
        (["forward-order", "counted-repeatedly"], 3.1025, 1.001, 3.001, 0.002001),
        (["initial-state-counted-repeatedly"], 2.8003, 1.0, 2.001, 0.003002),
    ],
)
def test_faults_give_the_numbers_that_flux_was_seen_to_give(fault, dweight_ih, dweight_hh, dbias, dh0):
    case, task = known_case("flux-1547")
    by_name = {one.name: one for one in variants(case)}
    found = gradients(task, [by_name[name] for name in fault])
    numbers = [found[f"d{name}"][0][0].item() for name in ("weight_ih", "weight_hh", "bias_ih")]
    for number, expected in zip([*numbers, found["dh0"].item()], [dweight_ih, dweight_hh, dbias, dh0], strict=True):
        assert expected is None or number == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("variant", "fault", "head", "final", "expected"),
    [
        ("chain-map-explicit", "counted-repeatedly", (0, 0, 0), 1, (369, 121.5, 18, 40)),
        ("chain-map-explicit", "counted-repeatedly", (0, 0, 1), 0, (369, 121.5, 18, 39)),
        ("chain-map-explicit", "counted-repeatedly", (1, 0, 0), 1, (370, 122, 19, 43)),
        ("chain-map-explicit", "counted-repeatedly", (0, 0, 1), 1, (738, 243, 36, 79)),
        ("chain-broadcast-explicit", "forward-order counted-repeatedly", (0, 0, 0), 1, (963, 307.5, 18, 40)),
        ("chain-broadcast-explicit", "forward-order counted-repeatedly", (0, 1, 0), 0, (320, 102, 5, 12)),
        ("chain-broadcast-explicit", "forward-order counted-repeatedly", (1, 0, 0), 1, (1926, 615, 36, 79)),
    ],
)
def test_a_final_states_head_gradient_counts_as_flux_0_14_25_was_seen_to_count_it(
    variant, fault, head, final, expected
):
    """Values that the named variants returned, live, on a linear cell."""
    weights = Weights(np.array([[2.0]]), np.array([[3.0]]), np.array([0.25]), np.array([0.0]))
    case = Case(
        name="linear",
        mode="rnn_identity",
        dtype="float64",
        x=np.array([1.0, 10.0, 100.0]).reshape(3, 1, 1),
        params=((weights,),),
        h0=np.full((1, 1, 1), 0.5),
        head=np.array(head, float).reshape(3, 1, 1),
        head_hn=np.full((1, 1, 1), float(final)),
        requested=("params", "h0"),
    )
    task, known = Task(case, 3), truth(Task(case, 3))
    by_name = {one.name: one for one in variants(case)}
    found = gradients(task, [by_name[name] for name in fault.split()])
    numbers = [found[f"d{name}"][0][0].item() for name in ("weight_ih", "weight_hh", "bias_ih")]
    np.testing.assert_allclose([*numbers, found["dh0"].item()], expected, rtol=1e-14)
    answers = {name: Answer(found[name]) for name in case.quantities}
    (match,) = Matcher().diagnose(
        [Seen(known, {name: judge(name, answer, known) for name, answer in answers.items()})], "flux", quick=True
    )
    assert sorted(match.kinds) == sorted(fault.split())


def test_dropping_the_recurrent_term_gives_the_digits_of_the_mxnet_report():
    case, task = known_case("mxnet-21143")
    (fault, *_) = variants(case)
    assert fault.name == "recurrent-term-dropped"
    expected = [0.14385478, 0.05408207, 0.01706791, 0.00660894, 0.0178871, 0.00672178, 0.01958952, 0.00729937]
    np.testing.assert_allclose(gradients(task, [fault])["dx"].ravel()[:8], expected, rtol=0, atol=1e-7)


def test_reset_before_the_product_is_the_right_gradient_of_that_cell():
    case = random_case(np.random.default_rng(5), mode="gru", layers=1, bidirectional=False, dtype="float64", T=4, H=3)
    (fault,) = CATALOGUE["gru-reset-before-product"].variants(case)
    cell = dict(fault.changes)["cell"]

    def loss(changed):
        head, head_hn, _ = changed.heads()
        tape = Tape(changed, 4, bridge.arithmetic.Exact(), cell=cell)
        total = float((tape.y[:, 0] * head).sum())
        return total + (0.0 if head_hn is None else float((tape.y[-1, 0] * head_hn[0]).sum()))

    found = gradients(Task(case, 4), [fault])
    weights = case.params[0][0]
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        array = getattr(weights, name)
        numeric = np.empty(array.shape)
        for index in np.ndindex(array.shape):
            step = np.zeros(array.shape)
            step[index] = 1e-6
            up, down = (
                loss(case.replace(params=[[weights._replace(**{name: array + sign * step})]])) for sign in (1, -1)
            )
            numeric[index] = (up - down) / 2e-6
        np.testing.assert_allclose(found[f"d{name}"][0][0], numeric, rtol=1e-6, atol=1e-8)


def test_truncation_after_all_steps_is_the_right_gradient():
    case = random_case(np.random.default_rng(6), mode="lstm", layers=2, bidirectional=True, dtype="float64", T=5, H=3)
    longest = list(CATALOGUE["truncated"].variants(case))[-1]
    whole = dataclasses.replace(longest, changes=(("reach", 5),))
    right, found = bridge.reference.gradients(case), gradients(Task(case, 5), [whole])
    np.testing.assert_allclose(found["dx"], right["dx"], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found["dweight_hh"][0][1], right["dweight_hh"][0][1], rtol=1e-12, atol=1e-14)


def test_two_faults_at_once_get_both_names():
    case = random_case(np.random.default_rng(7), mode="lstm", layers=1, bidirectional=False, dtype="float64", T=5, H=3)
    case = case.replace(requested=("x", "params", "h0", "c0"), head="ones")
    by_name = {str(fault): fault for fault in variants(case)}
    planted = [by_name["recurrent-term-dropped"], by_name["bias-doubled"]]
    (match,) = Matcher().diagnose([seen(Task(case, 5), gradients(Task(case, 5), planted))])
    assert set(match.kinds) == {"recurrent-term-dropped", "bias-doubled"}


def test_float32_inside_a_float64_result_has_a_name():
    case = random_case(np.random.default_rng(8), mode="gru", dtype="float64", T=6, H=4)
    case = case.replace(requested=("x", "params", "h0"))
    (match,) = Matcher().diagnose([seen(Task(case, case.seq_len), bridge.reference.gradients(case, dtype="float32"))])
    assert match.fault == "float32-intermediates"


def test_nothing_has_a_name_of_its_own_beside_what_is_wrong_with_the_values():
    case, task = known_case("flux-rnn-tanh")
    known = truth(task)
    values = {name: Answer(value) for name, value in bridge.reference.gradients(case).items()}
    values["dh0"] = Answer(nothing=True)
    values["dx"] = Answer(values["dx"].values[::-1])
    one = Seen(known, {name: judge(name, values[name], known) for name in case.quantities})
    assert [(m.quantities, m.fault) for m in Matcher().diagnose([one])] == [
        (("dh0",), "nothing-returned"),
        (("dx",), "time-reversed"),
    ]


def test_a_second_call_that_holds_the_first_is_a_buffer_not_cleared():
    case, task = known_case("flux-rnn-tanh")
    known, right = truth(task), bridge.reference.gradients(case)
    one = Seen(known, {"dx": judge("dx", Answer(right["dx"], again=2 * right["dx"]), known)})
    assert [m.fault for m in Matcher().diagnose([one])] == ["buffer-not-cleared"]
    other = Seen(known, {"dx": judge("dx", Answer(right["dx"], again=1.5 * right["dx"]), known)})
    assert [m.fault for m in Matcher().diagnose([other])] == ["unexplained"]


def test_every_kind_has_a_sentence_and_a_signature():
    for kind in CATALOGUE.values():
        assert kind.sentence
        assert kind.signature
