"""MXNet, live: the published digits, what each variant can and cannot do, and the conversions."""

import numpy as np
import pytest
from conftest import require_mxnet
from random_cases import random_case

import bridge
from bridge.answers import Task
from bridge.backends import mxnet
from bridge.backends.registry import select
from bridge.case import MODES
from bridge.faults import Matcher, Seen
from bridge.tolerance import truth
from bridge.verdicts import judge_reply

NATIVE = [
    [0.14385478, 0.05408207],
    [0.01706791, 0.00660894],
    [0.0178871, 0.00672178],
    [0.01958952, 0.00729937],
    [0.02612576, 0.00999804],
]  # apache/mxnet#21143: the same for every sequence length
ONEDNN = [
    [0.14598744, 0.05498122],
    [0.01734746, 0.00673208],
    [0.01820615, 0.00685919],
    [0.02004767, 0.00749636],
    [0.02612575, 0.00999804],
]  # apache/mxnet#21143: length 5


@pytest.fixture(scope="module")
def workers():
    require_mxnet()
    running = {}

    def session(variant):
        (backend,) = select([f"mxnet-*/{variant}"])
        return backend.open(60, workers=running)

    yield session
    for one in running.values():
        one.stop()


def dx(comparison, variant, seq_len):
    table = comparison.gradients
    rows = table[
        table["backend"].str.endswith("/" + variant) & (table["quantity"] == "dx") & (table["seq_len"] == seq_len)
    ]
    return rows["value"].to_numpy().reshape(seq_len, 2), rows["verdict"].to_numpy().reshape(seq_len, 2)


def assert_digits(value, published):
    """Equal within 3e-8 and one unit in the last place of each state h.

    The report's digits hold for the BLAS kernel of its CPU. Another rounds a state in [0.5, 1) to its neighbour, 2**-24
    away, and dx = W_ih.T @ ((1 - h**2) * dh) with dh = 1 moves by 2 * h * 2**-24 * |W_ih| (1.05e-7 on an AMD EPYC).
    """
    weight_ih = bridge.load_case("mxnet-21143").params[0][0].weight_ih
    assert (np.abs(value - published) <= 3e-8 + 2 * 2**-24 * np.abs(weight_ih).sum(axis=0)).all()


@pytest.mark.live
@pytest.mark.parametrize("variant", ["fused-native", "cached-native", "gluon-native"])
@pytest.mark.parametrize("seq_len", [1, 2, 3, 4, 5])
def test_native_kernel_gives_the_reports_digits_and_is_wrong_at_every_position_but_the_last(seed_run, variant, seq_len):
    value, verdict = dx(seed_run, variant, seq_len)
    assert_digits(value, NATIVE[:seq_len])
    assert (verdict[:-1] == "disagrees").all()
    assert (verdict[-1] == "agrees").all()


@pytest.mark.live
@pytest.mark.parametrize("variant", ["fused-onednn", "cached-onednn", "gluon-onednn", "unrolled"])
def test_other_kernels_give_the_other_digits_and_agree(seed_run, variant):
    value, _ = dx(seed_run, variant, 5)
    assert_digits(value, ONEDNN)
    summary = seed_run.summary[seed_run.summary["backend"].str.endswith("/" + variant)]
    assert set(summary["verdict"]) == {"agrees"}


@pytest.mark.live
def test_native_kernel_agrees_once_the_parameters_are_requested_too():
    require_mxnet()
    case = bridge.load_case("mxnet-21143").replace(requested=("x", "params"))
    assert set(bridge.compare(case, ["*/fused-native"]).summary["verdict"]) == {"agrees"}


@pytest.mark.live
def test_flux_seed_case_through_unrolled_cells_gives_the_true_numbers(workers):
    case = bridge.load_case("flux-1547")
    answers = workers("unrolled").ask(Task(case, 2)).answers
    found = [answers[f"d{name}"].values[0][0].item() for name in ("weight_ih", "weight_hh", "bias_ih")]
    np.testing.assert_allclose(found, [2.8003, 1, 2.001], rtol=1e-15)
    np.testing.assert_allclose(answers["dh0"].values.item(), 0.001001, rtol=1e-15)


@pytest.mark.live
@pytest.mark.parametrize(
    ("variant", "change", "words"),
    [
        ("fused-native", {"mode": "rnn_identity"}, "no identity activation"),
        ("gluon-onednn", {"mode": "rnn_identity"}, "no identity activation"),
        ("fused-onednn", {"dtype": "float64"}, "oneDNN serves float32 only"),
        ("cached-onednn", {"dtype": "float64"}, "oneDNN serves float32 only"),
    ],
)
def test_what_a_variant_cannot_do_is_unsupported_with_the_reason(workers, variant, change, words):
    case = bridge.load_case("mxnet-21143").replace(**change)
    answers = workers(variant).ask(Task(case, 5)).answers
    assert {answer.verdict for answer in answers.values()} == {"unsupported"}
    assert all(words in answer.reason for answer in answers.values())


@pytest.mark.live
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layers_directions_and_every_head_kind_agree_through_right_backends(workers, mode, dtype):
    for index, head in enumerate(("ones", "last", "given", "given+final")):
        for layers, bidirectional in ((1, True), (2, False), (2, True)):
            rng = np.random.default_rng([7, index, layers, bidirectional])
            case = random_case(
                rng, mode=mode, dtype=dtype, head=head, layers=layers, bidirectional=bidirectional, T=6, H=4, B=2, I=3
            )
            everything = ("x", "params", "h0", "c0")[: 4 if mode == "lstm" else 3]
            case = case.replace(requested=everything)
            right = ["unrolled"] + ["fused-onednn", "cached-onednn"] * (dtype == "float32" and mode != "rnn_identity")
            for variant in right:
                reply = workers(variant).ask(Task(case, 6))
                truth = bridge.reference.gradients(case)
                assert reply.notes == ()
                for name in case.quantities:
                    assert reply.answers[name].verdict == "", reply.answers[name].reason
                    close(reply.answers[name].values, truth[name], 2e-4 if dtype == "float32" else 1e-11)


def close(found, truth, tolerance):
    if isinstance(truth, tuple):
        for ours, theirs in zip(found, truth, strict=True):
            close(ours, theirs, tolerance)
    else:
        assert found.shape == truth.shape
        np.testing.assert_allclose(found, truth, rtol=0, atol=tolerance * max(1.0, np.abs(truth).max()))


@pytest.mark.parametrize(
    "sizes", [{"T": 1, "B": 1, "I": 1, "H": 1}, {"T": 8, "B": 1, "I": 2, "H": 30}, {"T": 40, "I": 50}]
)
def test_no_block_of_the_operator_is_larger_than_what_is_disturbed(sizes):
    for index, mode in enumerate(("rnn_tanh", "lstm", "gru") * 4):
        case = random_case(np.random.default_rng(index), mode=mode, layers=1 + index // 3 % 2, **sizes)
        length, batch, hidden, ways = case.seq_len, case.batch, case.hidden_size, case.directions
        units = length * batch * hidden * ways
        kept = {  # GetRNNReserveSpaceSize of MXNet's src/operator/rnn-inl.h
            "lstm": units * (case.layers * 7 - 1),
            "gru": units * (case.layers * 9 + 6) + batch * hidden * ways * 9 + hidden * length * 6,
            "rnn_tanh": units * (case.layers * 6 + 1) + batch * hidden * ways * 3 + hidden * length * 2,
        }[mode]
        largest = max(kept, case.x.size, units, mxnet.flatten(case.params).size) * case.x.itemsize
        assert largest <= mxnet._largest(case)


def test_flat_parameter_vector_round_trips_and_has_weights_before_biases():
    case = random_case(np.random.default_rng(0), mode="lstm", layers=2, bidirectional=True, I=3, H=4)
    vector = mxnet.flatten(case.params)
    back = mxnet.unflatten(vector, case.params)
    for ours, theirs in zip(back, case.params, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert all((a == b).all() for a, b in zip(one, other, strict=True))
    first, last = case.params[0][0], case.params[1][1]
    assert (vector[: first.weight_ih.size] == first.weight_ih.ravel()).all()
    assert (vector[-last.bias_hh.size :] == last.bias_hh).all()
    with pytest.raises(ValueError, match="shape"):
        mxnet.unflatten(vector[:-1], case.params)


FROM_GLUON = """
import numpy as np
np.bool = bool
import mxnet as mx
import bridge
mx.npx.set_np()
for kind, layout, layers, bidirectional in (("RNN", "TNC", 1, 0), ("LSTM", "NTC", 2, 1), ("GRU", "NTC", 1, 1)):
    layer = getattr(mx.gluon.rnn, kind)(3, layers, layout=layout, bidirectional=bool(bidirectional), input_size=2,
                                        i2h_bias_initializer="normal", h2h_bias_initializer="normal")
    layer.initialize(mx.init.Normal(0.5))
    x = mx.np.random.normal(size=(4, 5, 2))
    states = [mx.np.random.normal(size=s["shape"]) for s in layer.state_info(5 if layout == "TNC" else 4)]
    out, _ = layer(x, states)
    case = bridge.Case.from_gluon(layer, x, states, name="mine", head="last")
    y = bridge.reference.gradients(case)["y"]
    y = y if layout == "TNC" else y.swapaxes(0, 1)
    print(case.name, case.head, case.dtype, float(np.abs(y - out.asnumpy()).max()))
for wrong, call in {
    "dense": lambda: bridge.Case.from_gluon(mx.gluon.nn.Dense(3), x),
    "raw": lambda: bridge.Case.from_gluon(mx.gluon.rnn.RNN(3, input_size=2), x),
    "size": lambda: bridge.Case.from_gluon(layer, mx.np.zeros((4, 5, 7))),
    "dropout": lambda: bridge.Case.from_gluon(mx.gluon.rnn.RNN(3, dropout=0.5), x),
    "flat": lambda: bridge.Case.from_gluon(layer, mx.np.zeros((4, 5))),
    "projected": lambda: bridge.Case.from_gluon(mx.gluon.rnn.LSTM(3, projection_size=2), x),
    "lengths": lambda: bridge.Case.from_gluon(mx.gluon.rnn.LSTM(3, use_sequence_length=True), x),
}.items():
    try:
        call()
    except bridge.BadInputError as error:
        print(wrong, error)
"""


@pytest.mark.live
def test_from_gluon_takes_the_weights_of_a_live_layer(run_python):
    require_mxnet()
    lines = run_python(FROM_GLUON).splitlines()
    for line in lines[:3]:
        name, head, dtype, error = line.split()
        assert (name, head, dtype) == ("mine", "last", "float32")
        assert float(error) < 1e-6
    refused = {line.split()[0]: line for line in lines[3:]}
    assert list(refused) == ["dense", "raw", "size", "dropout", "flat", "projected", "lengths"]
    assert all("not covered, see docs/limits.md" in refused[name] for name in ("dropout", "projected", "lengths"))
    assert all("expected" in line and "found" in line for line in lines[3:])


@pytest.mark.live
@pytest.mark.parametrize("mode", ["rnn_tanh", "rnn_relu", "lstm", "gru"])
def test_native_kernel_adds_its_parameter_gradients_to_themselves_when_they_accumulate(workers, mode):
    case = random_case(np.random.default_rng(5), mode=mode, layers=1, T=4, H=3, dtype="float32", requested=("params",))
    task = Task(case, 4, accumulate=2)
    known = truth(task)
    seen = Seen(known, judge_reply(workers("fused-native").ask(task), known))
    (match,) = Matcher().diagnose([seen], "mxnet")
    assert match.fault == "buffer-added-to-itself"
    right = Seen(known, judge_reply(workers("unrolled").ask(task), known))
    assert not Matcher().diagnose([right])


@pytest.mark.live
def test_wrong_shapes_are_refused_but_for_head_gradients(workers):
    case = random_case(np.random.default_rng(6), mode="rnn_tanh", layers=1, T=3, B=2, dtype="float32")
    for malformed in ("h0[0]", "h0[1]", "h0[2]", "x[1]", "x[2]"):
        answers = workers("fused-onednn").ask(Task(case, 3, malformed=malformed)).answers
        assert {answer.verdict for answer in answers.values()} == {"unsupported"}, malformed
    for malformed in ("head[0]", "head[1]", "head[2]"):
        assert workers("fused-onednn").ask(Task(case, 3, malformed=malformed)).answers["y"].values is not None


@pytest.mark.live
@pytest.mark.parametrize("variant", ["fused-native", "gluon-onednn", "unrolled"])
def test_prediction_mode_gives_the_same_gradients(workers, variant):
    case = random_case(np.random.default_rng(7), mode="gru", layers=1, dtype="float32", requested=("x", "params", "h0"))
    task = Task(case, case.seq_len, training=False)
    known = truth(task)
    assert {judged.verdict for judged in judge_reply(workers(variant).ask(task), known).values()} == {"agrees"}
