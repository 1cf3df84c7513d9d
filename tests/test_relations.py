"""Relations: each fires on a planted violation, all are silent on right gradients; real kernels break the right one."""

import dataclasses
import itertools

import numpy as np
import pytest
from conftest import require_mxnet
from random_cases import random_case
from test_workers import backend as faulty

import bridge
from bridge.answers import Answer, Reply, Task
from bridge.backends.registry import select
from bridge.case import MODES
from bridge.relations import CANNOT_TELL, COLUMNS, HOLDS, NOT_APPLICABLE, RELATIONS, VIOLATED, check, examine

NAMES = [relation.name for relation in RELATIONS]


def right(task):
    grads = bridge.reference.gradients(task.case, task.seq_len, task.loss_step, dtype=task.case.dtype)
    times = {name: 1 if name == "y" else task.accumulate for name in grads}
    return {name: scaled(grads[name], times[name]) for name in task.case.quantities}


def scaled(values, factor):
    if isinstance(values, tuple):
        return tuple(tuple(block * block.dtype.type(factor) for block in row) for row in values)
    return values * values.dtype.type(factor)


def replied(grads):
    return Reply({name: Answer(values) for name, values in grads.items()})


def ask_right(task):
    return replied(right(task))


def small(seed=0, **fixed):
    fixed = {"mode": "gru", "layers": 1, "bidirectional": False, "T": 5, "B": 3, "H": 4, "I": 2} | fixed
    fixed = {"dtype": "float32", "requested": ("x", "params", "h0"), "zero_states": False} | fixed
    return random_case(np.random.default_rng([31, seed]), **fixed)


def by_name(results):
    return {result.relation: result for result in results}


# -- silent ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_every_relation_is_silent_on_the_reference(mode, dtype):
    held = set()
    for layers, bidirectional in ((1, False), (1, True), (2, False), (2, True)):
        rng = np.random.default_rng([32, layers, bidirectional])
        case = random_case(rng, mode=mode, dtype=dtype, layers=layers, bidirectional=bidirectional, T=5)
        results = examine(ask_right, case, understands=("accumulate",))
        assert [r for r in results if r.verdict == VIOLATED] == [], case
        held |= {r.relation for r in results if r.verdict == HOLDS}
    assert held == set(NAMES)


def test_saturated_and_chaotic_cases_are_no_violation():
    for seed, (mode, scale) in enumerate(itertools.product(("rnn_tanh", "lstm", "gru"), (2.0, 5.0))):
        case = small(seed, mode=mode, scale=scale, T=8, H=6, layers=2)
        assert [r.text for r in examine(ask_right, case) if r.verdict == VIOLATED] == []


# -- planted violations ------------------------------------------------------------------------------------------


def changed(change):
    """An ask whose dx is changed by ``change(task, dx)``."""

    def ask(task):
        grads = right(task)
        if "dx" in grads:
            grads["dx"] = change(task, grads["dx"]).astype(task.case.dtype)
        return replied(grads)

    return ask


def leaking():
    last = [0.0]

    def change(task, dx):
        dx, last[0] = dx + 0.01 * last[0], float(dx.mean())
        return dx

    return changed(change)


def unsteady(task):
    reply = ask_right(task)
    dx = reply.answers.get("dx")
    if dx is None:
        return reply
    again = dx.values.copy()
    again[1, 0, 0] = np.nextafter(again[1, 0, 0], np.inf, dtype=again.dtype)
    return dataclasses.replace(reply, answers={**reply.answers, "dx": dataclasses.replace(dx, again=again)})


def writing(task):
    return dataclasses.replace(ask_right(task), notes=("it wrote into its input h0",))


def forgetting(task):
    return ask_right(dataclasses.replace(task, accumulate=1))


PLANTED = {
    "causality": changed(lambda task, dx: dx + 0.001 * dx[:1]),
    "request invariance": changed(lambda task, dx: dx * (1 if "params" in task.case.requested else 1.001)),
    "prefix consistency": changed(lambda task, dx: dx * (1 + 1e-3 * task.seq_len)),
    "linearity": changed(lambda task, dx: dx + 1e-2 * dx * np.abs(dx)),
    "batch independence": changed(lambda task, dx: dx + 1e-3 * dx.mean(axis=1, keepdims=True)),
    "batch permutation": changed(lambda task, dx: dx * (1 + 1e-3 * np.arange(dx.shape[1])[:, None])),
    "hidden-unit permutation": changed(lambda task, dx: dx * (1 + 0.01 * task.case.h0[0, 0] @ range(4))),
    "time reversal": changed(lambda task, dx: dx * (1 + 1e-3 * np.arange(len(dx))[:, None, None])),
    "call independence": leaking(),
    "accumulation": forgetting,
    "dtype agreement": changed(lambda task, dx: dx * (1.001 if task.case.dtype == "float32" else 1)),
    "repeatability": unsteady,
    "inputs left unmodified": writing,
}


def test_there_is_a_planted_violation_of_every_relation():
    assert set(PLANTED) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_a_planted_violation_is_found_with_its_worst_instance(name, mode):
    (relation,) = [one for one in RELATIONS if one.name == name]
    for seed in range(3):
        case = small(seed, mode=mode, scale=0.5, bidirectional=name == "time reversal")
        calls = bridge.relations.Calls(PLANTED[name], understands=("accumulate",))
        result = relation.check(calls, case)
        assert result.verdict == VIOLATED, result
        if name == "inputs left unmodified":
            assert result.where == "h0"
            continue
        assert result.worst > result.allowed
        assert result.quantity
        assert result.reason
        if name != "accumulation":
            assert result.quantity == "dx"
            assert "timestep" in result.where


def test_a_batch_mean_in_place_of_a_sum_is_found_in_the_parameters():
    def ask(task):
        grads = right(task)
        return replied({n: scaled(v, 1 / task.case.batch) if isinstance(v, tuple) else v for n, v in grads.items()})

    for case in (small(B=1), small(B=3)):
        result = by_name(examine(ask, case))["batch independence"]
        assert result.verdict == VIOLATED
        assert result.quantity.startswith(("dweight", "dbias"))


def test_a_state_gradient_summed_over_the_batch_is_compared_as_such():
    def ask(task):
        reply = ask_right(task)
        dh0 = reply.answers.get("dh0")
        if dh0 is None:
            return reply
        summed = Answer(dh0.values.sum(axis=1, keepdims=True), batch_summed=True)
        return dataclasses.replace(reply, answers={**reply.answers, "dh0": summed})

    results = by_name(examine(ask, small()))
    assert results["batch independence"].verdict == HOLDS
    assert results["batch permutation"].verdict == HOLDS


def test_causality_is_checked_per_direction():
    def later(task, dx):  # a right dx, and a little of the last step's at the first: the reverse half may read it
        return dx + 0.01 * dx[-1:]

    result = by_name(examine(changed(later), small(bidirectional=True)))["causality"]
    assert result.verdict == VIOLATED
    assert "direction" in result.reason
    assert by_name(examine(ask_right, small(bidirectional=True, layers=2)))["causality"].verdict == NOT_APPLICABLE


def test_a_violation_of_the_case_itself_is_shown_before_those_of_its_variations():
    def ask(task):
        grads = right(task)
        if "params" not in task.case.requested:
            grads = {n: v if n == "y" else v * v.dtype.type(2 if n == "dx" else 100) for n, v in grads.items()}
        return replied(grads)

    result = by_name(examine(ask, small(requested=("x",))))["request invariance"]
    assert (result.quantity, result.verdict) == ("dx", VIOLATED)
    assert "requested x against x params h0" in result.reason


# -- what cannot be told -----------------------------------------------------------------------------------------


def test_refusals_are_not_told_with_their_words():
    def ask(task):
        if task.accumulate > 1 or task.case.dtype == "float64":
            return Reply.without_values(task.case.quantities, "unsupported", "not on a Monday")
        return ask_right(task)

    results = by_name(examine(ask, small(), understands=("accumulate",)))
    assert results["accumulation"].verdict == CANNOT_TELL
    assert "not on a Monday" in results["accumulation"].reason
    assert results["dtype agreement"].verdict == NOT_APPLICABLE
    assert by_name(examine(ask, small()))["accumulation"].verdict == NOT_APPLICABLE


def test_a_backend_that_only_knows_the_case_is_not_accused():
    case = small()

    def ask(task):
        if task.case != case:
            return Reply.without_values(task.case.quantities, "unavailable", "not recorded")
        return ask_right(task)

    results = by_name(examine(ask, case))
    assert {r.verdict for r in results.values()} <= {HOLDS, CANNOT_TELL, NOT_APPLICABLE}
    assert results["causality"].verdict == HOLDS
    assert results["prefix consistency"].verdict == HOLDS
    assert results["linearity"].verdict == CANNOT_TELL
    assert "not recorded" in results["linearity"].reason


def test_a_case_as_noisy_as_its_gradients_cannot_tell():
    def noise(task, dx):
        rng = np.random.default_rng(int(task.case.digest()[:8], 16))
        return rng.standard_normal(dx.shape)

    case = small(requested=("x",))
    results = by_name(examine(changed(noise), case))
    assert results["dtype agreement"].verdict == CANNOT_TELL
    assert "rounding noise" in results["dtype agreement"].reason


def test_what_does_not_apply_says_why():
    results = by_name(examine(ask_right, small(T=1, B=1, H=1, requested=("h0",))))
    for name in ("causality", "prefix consistency", "batch permutation", "hidden-unit permutation", "time reversal"):
        assert results[name].verdict == NOT_APPLICABLE
        assert results[name].reason


# -- through backends --------------------------------------------------------------------------------------------


def test_the_table_has_a_row_per_backend_and_relation_and_a_reason_where_nothing_was_compared():
    case = bridge.load_case("flux-rnn-tanh").replace(name="raises")
    table = check(case, [faulty("none"), faulty("raises")])
    assert tuple(table.columns) == COLUMNS
    assert list(table["relation"]) == NAMES * 2
    assert set(table.loc[table["backend"] == "faulty-1/none", "verdict"]) == {HOLDS, NOT_APPLICABLE}
    broken = table[table["backend"] == "faulty-1/raises"]
    assert set(broken["verdict"]) == {CANNOT_TELL, NOT_APPLICABLE}
    assert (broken["reason"] != "").all()


@pytest.fixture(scope="module")
def kernels():
    require_mxnet()
    sessions = {name: select([f"mxnet-*/fused-{name}"])[0].open(60) for name in ("native", "onednn")}
    yield {name: session.ask for name, session in sessions.items()}
    for session in sessions.values():
        session.stop()


@pytest.mark.live
def test_native_kernel_with_x_alone_depends_on_what_else_is_requested_and_onednn_does_not(kernels):
    case = bridge.load_case("mxnet-21143")
    native = by_name(examine(kernels["native"], case))["request invariance"]
    assert (native.verdict, native.quantity) == (VIOLATED, "dx")
    assert "requested x against x params h0" in native.reason
    assert [result for result in examine(kernels["onednn"], case) if result.verdict == VIOLATED] == []


@pytest.mark.live
def test_native_kernel_adds_parameter_gradients_up_wrongly_and_onednn_rightly(kernels):
    case = small(mode="lstm", requested=("params",), T=2, B=1, H=1, I=1)
    verdicts = {
        name: by_name(examine(ask, case, understands=("accumulate",)))["accumulation"].verdict
        for name, ask in kernels.items()
    }
    assert verdicts == {"native": VIOLATED, "onednn": HOLDS}


def test_accumulate_travels_to_the_worker():
    task = Task(small(), 5, None, 2)
    assert Task.from_plain(task.to_plain()) == task
