"""The Jacobian map: right on the reference, signs of planted faults, one pass or many, and real kernels."""

import naive
import numpy as np
import pytest
from conftest import require_mxnet
from random_cases import random_case
from test_workers import backend as faulty

import bridge
from bridge.answers import Answer, Reply, Task
from bridge.backends.registry import select
from bridge.case import MODES
from bridge.jacobian import COLUMNS, SIGNS, jacobian_map, measure, reference_map, repeated
from bridge.verdicts import VERDICTS


class Fake:
    """A session in this process: the reference's gradients in the case's dtype, changed by ``plant``."""

    def __init__(self, plant=lambda task, grads: None):
        self.plant, self.tasks = plant, []

    def ask(self, task):
        self.tasks.append(task)
        grads = bridge.reference.gradients(task.case, task.seq_len, task.loss_step, dtype=task.case.dtype)
        reply = self.plant(task, grads)
        return reply or Reply({name: Answer(grads[name]) for name in task.case.quantities})


def cases(**fixed):
    for index, mode in enumerate(MODES):
        for bidirectional in (False, True):
            rng = np.random.default_rng([21, index, bidirectional])
            case = random_case(rng, **{"mode": mode, "bidirectional": bidirectional, "T": 6, "H": 4, "B": 2} | fixed)
            yield case.replace(requested=("x", "params"))


def small(**fixed):
    fixed = {"mode": "rnn_tanh", "layers": 1, "bidirectional": False, "T": 5, "B": 2, "H": 3, "I": 2} | fixed
    return random_case(np.random.default_rng(4), **{"requested": ("x",), "dtype": "float64"} | fixed)


def sign(found, step, time):
    return SIGNS[found.signs[step, time]]


def test_the_reference_is_right_everywhere_in_one_pass_and_equals_direct_passes():
    for case in cases():
        session = Fake()
        found = measure(session, case)
        assert (found.signs == 0).all(), case
        assert "one backward pass" in found.how
        assert len(session.tasks) == 3  # first and last loss step, and all at once
        for step in range(case.seq_len):
            direct = bridge.reference.gradients(case, None, step)["dx"]
            np.testing.assert_allclose(found.reference[step], direct, rtol=1e-13, atol=1e-300)
            assert (np.abs(found.values[step] - direct) <= found.tolerance[step]).all()
        np.testing.assert_allclose(reference_map(case), found.reference, rtol=1e-12, atol=1e-15)
        if not case.bidirectional:
            later = np.triu_indices(case.seq_len, 1)
            assert (found.values[later] == 0).all()
            assert (found.reference[later] == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_the_reference_map_is_the_complex_step_derivative(mode):
    case = random_case(np.random.default_rng(5), mode=mode, T=4, B=2, H=3, I=2, dtype="float64", bidirectional=True)
    params = [[weights._asdict() for weights in row] for row in case.params]
    found = reference_map(case)
    for step in range(4):
        head = case.heads(4, step)[0]
        expected = naive.complex_step(mode, case.x, params, case.h0, case.c0, (head, None, None))["dx"]
        np.testing.assert_allclose(found[step], expected, rtol=1e-10, atol=1e-13)


def test_prefixes_and_given_heads_are_those_of_the_loss_steps():
    case = small(head="given+final", T=6)
    found = measure(Fake(), case, 4)
    assert found.values.shape == (4, 4, 2, 2)
    for step in range(4):
        np.testing.assert_allclose(found.values[step], bridge.reference.gradients(case, 4, step)["dx"], rtol=1e-12)


def test_the_repeated_case_has_every_loss_step_in_its_batch():
    case = small(head="given")
    wide = repeated(case, 5, [1, 3])
    assert wide.requested == case.requested
    np.testing.assert_array_equal(wide.x[:, 2:], case.x)
    np.testing.assert_array_equal(wide.head[3, 2:], case.head[3])
    assert np.count_nonzero(wide.head[:, 2:]) == np.count_nonzero(case.head[3])


def test_signs_of_planted_faults():
    case = small()

    def plant(task, grads):
        dx = grads["dx"] = grads["dx"].copy()
        size = case.batch
        for step, part in parts(task, size):
            if step == 2:
                dx[0, part] = 0
                dx[1, part] *= 1.01
                dx[4, part] = 1e-9

    found = measure(Fake(plant), case)
    assert sign(found, 2, 0) == "wrongly zero"
    assert sign(found, 2, 1) == "wrong"
    assert sign(found, 2, 4) == "wrongly non-zero"
    assert found.count(0) == 22
    lines = found.text().splitlines()
    assert lines[2:7] == ["  0 o . . . .", "  1 o o . . .", "  2 0 X o . +", "  3 o o o o .", "  4 o o o o o"]
    assert "0 wrongly zero" in lines[7]


def parts(task, size):
    """Loss steps in a task, direct or repeated along the batch, and where their sequences are."""
    if task.loss_step is not None:
        return [(task.loss_step, slice(None))]
    return [(step, slice(step * size, (step + 1) * size)) for step in range(task.case.batch // size)]


def test_a_backend_that_mixes_the_batch_is_noticed_and_asked_for_each_loss_step():
    case = small()

    def mix(task, grads):
        grads["dx"] = grads["dx"] + 1e-3 * np.roll(grads["dx"], 1, axis=1)

    session = Fake(mix)
    found = measure(session, case)
    assert found.how.startswith("a pass per loss step (5): batch elements are not independent: loss step 0, dx[0, ")
    assert len(session.tasks) == 6
    right = bridge.reference.gradients(case, None, 3)["dx"]
    np.testing.assert_allclose(found.values[3], right + 1e-3 * np.roll(right, 1, axis=1), rtol=1e-12)
    assert sign(found, 3, 0) == "wrong"


def test_a_backend_that_knows_the_case_alone_is_asked_for_each_loss_step():
    case = small()

    def only(task, grads):
        if task.case != case:
            return Reply.without_values(task.case.quantities, "unavailable", "this case is not recorded")
        return None

    found = measure(Fake(only), case)
    assert found.how == "a pass per loss step (5): the batched case is unavailable (this case is not recorded)"
    assert (found.signs == 0).all()


def test_a_carried_state_is_judged_against_itself_in_passes_of_their_own():
    case = small()
    start = case.h0 + 0.5

    def stale(task, grads):
        h0 = np.tile(start, (1, task.case.batch // 2, 1))
        grads = bridge.reference.gradients(task.case.replace(h0=h0), task.seq_len, task.loss_step)
        return Reply({name: Answer(grads[name]) for name in task.case.quantities}, start={"h0": h0})

    found = measure(Fake(stale), case)
    assert found.how.startswith("a pass per loss step")
    assert (found.signs == 0).all()


def test_without_dx_there_is_a_reason_and_no_rows():
    case = small()
    found = measure(Fake(lambda task, grads: Reply.without_values(("y", "dx"), "unsupported", "not today")), case)
    assert found.reason == "not today"
    assert len(found.frame) == 0
    assert "none (not today)" in found.text()
    assert {VERDICTS[code] for code in np.unique(found.verdict)} == {"unsupported"}
    assert np.isnan(found.values).all()


def test_loss_steps_that_are_not_repeatable_or_nothing_have_no_value():
    case = small()

    def unsteady(task, grads):
        again = grads["dx"].copy()
        for step, part in parts(task, case.batch):
            if step == 1:
                again[0, part] += 1
        again = None if (again == grads["dx"]).all() else again
        return Reply({"y": Answer(grads["y"]), "dx": Answer(grads["dx"], again)})

    found = measure(Fake(unsteady), case)
    assert [sign(found, 1, t) for t in range(5)] == ["no value"] * 5
    assert np.isnan(found.values[1]).all()
    assert found.count(4) == 5
    assert set(found.frame.loc[found.frame["loss_step"] == 1, "verdict"]) == {"not repeatable"}
    nothing = measure(Fake(lambda task, grads: Reply({"dx": Answer(nothing=True)})), case)
    assert sign(nothing, 3, 0) == "no value"
    assert sign(nothing, 0, 3) == "right"  # nothing, where the truth is zero


def test_not_finite_blocks_are_wrong():
    def plant(task, grads):
        grads["dx"] = grads["dx"] * np.nan

    found = measure(Fake(plant), small())
    assert (found.signs[np.tril_indices(5)] == 1).all()


def test_the_table_has_the_documented_columns_and_finds_the_values():
    case = small()
    found = measure(Fake(), case, backend="fake-1/x")
    table = found.frame
    assert tuple(table.columns) == COLUMNS
    assert len(table) == 5 * 5 * 2 * 2
    for row in table.sample(20, random_state=0).itertuples():
        assert row.value == found.values[row.loss_step, row.timestep, row.batch, row.row]
        assert (row.case, row.backend, row.verdict) == (case.name, "fake-1/x", "agrees")


def test_weights_by_loss_step_take_a_pass_each():
    case = small(mode="gru", layers=2, bidirectional=True, requested=("x", "params"))
    session = Fake()
    found = measure(session, case, weights=True)
    assert len(session.tasks) == 5
    table = found.weights_frame
    assert set(table["verdict"]) == {"agrees"}
    row = table[(table["quantity"] == "dweight_hh") & (table["loss_step"] == 3)].iloc[100]
    expected = bridge.reference.gradients(case, None, 3)["dweight_hh"][row["layer"]][row["direction"]]
    assert row["reference"] == pytest.approx(expected[row["row"], row["col"]], rel=1e-12)


def test_a_long_map_is_printed_in_groups_that_show_their_gravest_block():
    case = small(T=50, B=1, H=2, I=1)

    def plant(task, grads):
        for step, part in parts(task, 1):
            if step == 30:
                grads["dx"][5, part] += 1

    found = measure(Fake(plant), case)
    lines = found.text().splitlines()
    assert "stands for 2 steps" in lines[1]
    row = next(line for line in lines if line.strip().startswith("30-31"))
    assert row.split()[3] == "X"
    assert max(map(len, lines[:-1])) < 120


def test_bad_arguments_are_refused_in_one_line():
    case = small()
    for call, words in (
        (lambda: measure(Fake(), case.replace(requested=("h0",))), "x among what a map is asked for"),
        (lambda: measure(Fake(), case, weights=True), "params among"),
        (lambda: measure(Fake(), case, 9), "seq_len"),
        (lambda: jacobian_map(case, "mxnet-*"), "one backend"),
        (lambda: jacobian_map(case, "no-such"), "no-such"),
    ):
        with pytest.raises(bridge.BadInputError, match=words):
            call()


def test_a_backend_in_a_worker_that_crashes_gives_its_reason():
    case = bridge.load_case("flux-rnn-tanh").replace(name="raises", requested=("x",))
    found = jacobian_map(case, faulty("raises"))
    assert "RuntimeError: the first line" in found.reason
    assert "none (" in found.text()


@pytest.mark.live
@pytest.mark.parametrize("variant", ["fused-native", "fused-onednn"])
def test_one_pass_equals_a_pass_per_loss_step_on_both_kernels(variant):
    require_mxnet()
    (chosen,) = select([f"mxnet-*/{variant}"])
    session = chosen.open(60)
    try:
        for case in (bridge.load_case("mxnet-21143"), small(mode="gru", dtype="float32", T=7)):
            found = measure(session, case)
            assert "one backward pass" in found.how
            for step in range(case.seq_len):
                direct = session.ask(Task(case, case.seq_len, step)).answers["dx"].values
                size = np.abs(direct).max()
                np.testing.assert_allclose(found.values[step], direct, rtol=0, atol=8 * 1.2e-7 * size)
            below = found.signs[np.tril_indices(case.seq_len, -1)]
            if variant == "fused-onednn":
                assert (found.signs == 0).all()
            elif case.mode == "rnn_tanh":
                assert {SIGNS[code] for code in below} == {"wrongly zero"}
            else:
                assert (below != 0).all()
    finally:
        session.stop()
