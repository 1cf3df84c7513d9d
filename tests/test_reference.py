"""The reference is right: proven by complex-step differentiation of an independent forward pass (naive.py)."""

from __future__ import annotations

import itertools
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from naive import complex_step, forward
from random_cases import HEADS, random_case

from bridge import load_case
from bridge.arithmetic import Exact, Noisy, sech2, sigmoid
from bridge.case import GATES, PARAM_NAMES, Case, Weights
from bridge.errors import BadInputError
from bridge.reference import Tape, gradients, without_replicas

TOLERANCE = 1e-12
MODES = tuple(GATES)


def flat(found: dict[str, Any]) -> dict[str, Any]:
    """Every array of an answer by a name of its own."""
    arrays = {}
    for quantity, value in found.items():
        if isinstance(value, tuple):
            cells = ((k, d, block) for k, blocks in enumerate(value) for d, block in enumerate(blocks))
            arrays |= {f"{quantity}[{k}][{d}]": block for k, d, block in cells}
        else:
            arrays[quantity] = value
    return arrays


def errors(found: dict[str, Any], exact: dict[str, Any]) -> dict[str, float]:
    """The worse of the norm-wise and the max-wise relative error of every array."""
    found, exact = flat(found), flat(exact)
    assert found.keys() == exact.keys()
    worst = {}
    for name, right in exact.items():
        assert found[name].shape == right.shape, name
        wrong = found[name] - right
        worst[name] = max(
            np.linalg.norm(wrong) / (np.linalg.norm(right) or 1.0), np.abs(wrong).max() / (np.abs(right).max() or 1.0)
        )
    return worst


def check(found: dict[str, Any], exact: dict[str, Any], tolerance: float = TOLERANCE) -> None:
    for name, error in errors(found, exact).items():
        assert error < tolerance, f"{name} is off by {error:.2e}"


def by_complex_step(case: Case, seq_len: int | None = None, loss_step: int | None = None) -> dict[str, Any]:
    params = [[weights._asdict() for weights in directions] for directions in case.params]
    return complex_step(case.mode, case.x[:seq_len], params, case.h0, case.c0, case.heads(seq_len, loss_step))


def small_case(rng: np.random.Generator, **fixed: Any) -> Case:
    sizes = {
        "T": int(rng.integers(1, 8)),
        "I": int(rng.integers(1, 4)),
        "H": int(rng.integers(1, 5)),
        "dtype": "float64",
    }
    return random_case(rng, **(sizes | fixed))


def seed(*parts: Any) -> np.random.Generator:
    return np.random.default_rng([MODES.index(part) if isinstance(part, str) else int(part) for part in parts])


# -- the proof ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "bidirectional"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_every_gradient_equals_the_complex_step(mode: str, layers: int, bidirectional: bool) -> None:
    rng = seed(1, mode, layers, bidirectional)
    for head, length in zip(HEADS * 2, (1, 2, 3, 4, 5, 6, 7, 7), strict=True):
        case = small_case(rng, mode=mode, layers=layers, bidirectional=bidirectional, head=head, T=length)
        check(gradients(case), by_complex_step(case))


@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "bidirectional"])
@pytest.mark.parametrize("mode", MODES)
def test_prefixes_and_loss_steps_equal_the_complex_step(mode: str, bidirectional: bool) -> None:
    rng = seed(2, mode, bidirectional)
    for head in HEADS:
        case = small_case(rng, mode=mode, bidirectional=bidirectional, head=head, T=4, H=3)
        for seq_len, loss_step in ((1, None), (3, None), (3, 0), (None, 1), (4, 3)):
            check(gradients(case, seq_len, loss_step), by_complex_step(case, seq_len, loss_step))


@pytest.mark.parametrize("mode", MODES)
def test_final_states_heads_alone_equal_the_complex_step(mode: str) -> None:
    case = small_case(seed(3, mode), mode=mode, layers=2, bidirectional=True, head="given+final", T=3)
    case = case.replace(head=np.zeros(case.head.shape))
    check(gradients(case), by_complex_step(case))
    assert np.abs(gradients(case)["dx"]).max() > 0


@pytest.mark.parametrize("name", ["y", "dx", "dh0", "dc0", *("d" + name for name in PARAM_NAMES)])
@pytest.mark.parametrize("wrong", ["scaled by 1 + 1e-9", "one element", "sign", "zero"])
def test_the_check_fails_for_a_wrong_answer(name: str, wrong: str) -> None:
    case = small_case(seed(4), mode="lstm", layers=2, bidirectional=True, T=3, H=2)
    found = gradients(case)
    exact = by_complex_step(case)
    check(found, exact)
    right = found[name][1][0] if isinstance(found[name], tuple) else found[name]
    changed = right.copy()
    if wrong == "one element":
        changed.flat[np.abs(right).argmax()] *= 1 + 1e-9
    else:
        changed *= {"scaled by 1 + 1e-9": 1 + 1e-9, "sign": -1, "zero": 0}[wrong]
    if isinstance(found[name], tuple):
        found[name] = (found[name][0], (changed, found[name][1][1]))
    else:
        found[name] = changed
    with pytest.raises(AssertionError, match=f"^{name}"):
        check(found, exact)


def test_the_naive_forward_gives_a_hand_computed_step() -> None:
    one = np.ones((1, 1, 1, 1))
    cell = {"weight_ih": one[0], "weight_hh": one[0], "bias_ih": one[0, 0], "bias_hh": 0 * one[0, 0]}
    y, h_n, _ = forward("rnn_tanh", 2 * one, [[cell]], 3 * one, one)
    assert y.item() == h_n.item() == np.tanh(2.0 + 3 + 1)


def test_at_a_relu_kink_the_slope_is_zero() -> None:
    case = small_case(seed(5), mode="rnn_relu", layers=1, bidirectional=False, T=2, B=1, I=1, H=1, head="ones")
    one = np.ones((1, 1))
    case = case.replace(x=[[[1.0]], [[2.0]]], params=[[Weights(one, one, -one[0], 0 * one[0])]], h0=[[[0.0]]])
    assert gradients(case)["dx"].tolist() == [[[0.0]], [[1.0]]]  # step 0 lies on the kink and gets nothing from step 1


# -- saturated gates ---------------------------------------------------------------------------------------------

TAILS = [0.0, 1e-9, 0.3, 1.0, 17.0, 36.7, 40.0, 300.0, 350.0, 700.0, 709.0, 744.0, 800.0, 1e300]


def exact_logistic(a: float) -> Decimal:
    with localcontext() as context:
        context.prec = 60
        return 1 / (1 + (-Decimal(a)).exp()) if a > -1000 else Decimal(0)


def close(found: Any, exact: Decimal, ulps: int = 8) -> bool:
    info = np.finfo(found.dtype)
    near = Decimal(ulps * float(info.eps)) * abs(exact) + 2 * Decimal(float(info.smallest_subnormal))
    return abs(Decimal(float(found)) - exact) <= near


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("a", [sign * a for a in TAILS for sign in (1, -1)])
def test_activations_keep_relative_accuracy_in_the_tails(a: float, dtype: type) -> None:
    given = np.array([[[min(max(a, -np.finfo(dtype).max), np.finfo(dtype).max)]]], dtype)
    a = float(given.item())
    value, complement = sigmoid(given)
    slope, derivative = sech2(given), Exact().sigmoid(given)[2]
    assert {result.dtype for result in (value, complement, slope, derivative)} == {np.dtype(dtype)}
    assert close(value[0, 0, 0], exact_logistic(a))
    assert close(complement[0, 0, 0], exact_logistic(-a))
    assert close(derivative[0, 0, 0], exact_logistic(a) * exact_logistic(-a))
    assert close(slope[0, 0, 0], 4 * exact_logistic(2 * a) * exact_logistic(-2 * a))


@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm", "gru"])
def test_every_single_element_is_right_in_saturated_nets(mode: str) -> None:
    rng = seed(6, mode)
    gates = GATES[mode]
    for biases in itertools.product((-40.0, -20.0, 0.0, 20.0, 40.0), repeat=min(gates, 3)):
        case = small_case(rng, mode=mode, layers=1, bidirectional=False, T=1, B=1, I=1, H=1, head="given")
        weights = case.params[0][0]
        bias = np.array((*biases, 0.5)[:gates])
        case = case.replace(params=[[weights._replace(bias_ih=bias)]])
        found, exact = flat(gradients(case)), flat(by_complex_step(case))
        for name, right in exact.items():
            assert np.allclose(found[name], right, rtol=1e-11, atol=0), (biases, name)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", [40.0, 700.0, 1e4, 1e30])
@pytest.mark.parametrize("mode", MODES)
def test_saturation_neither_warns_nor_leaves_the_finite(mode: str, size: float, dtype: type) -> None:
    case = small_case(seed(7, mode), mode=mode, layers=1, T=3, H=4, scale=0.5)
    case = case.replace(params=[[w._replace(bias_ih=size * np.sign(w.bias_ih)) for w in case.params[0]]])
    assert all(np.isfinite(array).all() for array in flat(gradients(case, dtype=dtype)).values())
    tape = Tape(case, 3, Noisy(2.0**-24, np.random.default_rng(0), 2))
    assert all(np.isfinite(array).all() for array in flat(tape.pull(*tape.cotangents(*case.heads()))).values())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_net_that_outgrows_its_dtype_says_so_by_its_values_without_a_warning(dtype: type) -> None:
    case = small_case(seed(8), mode="rnn_identity", layers=2, bidirectional=True, T=30, H=4, scale=1e20)
    found = flat(gradients(case, dtype=dtype))
    assert not np.isfinite(found["y"]).all()
    assert not np.isfinite(found["dx"]).all()


# -- float32, causality, linearity -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_float32_on_request_is_float32_and_near(mode: str) -> None:
    rng = seed(9, mode)
    for _ in range(10):
        case = small_case(rng, mode=mode, scale=0.3)
        single = gradients(case, dtype=np.float32)
        assert {array.dtype for array in flat(single).values()} == {np.dtype("float32")}
        worst = max(errors(single, gradients(case)).values())
        assert worst < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_answer_is_float64_whatever_the_case_is_in(dtype: str) -> None:
    case = small_case(seed(10), mode="lstm", dtype=dtype)
    assert {array.dtype for array in flat(gradients(case)).values()} == {np.dtype("float64")}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_loss_at_step_s_does_not_reach_later_inputs(mode: str, layers: int) -> None:
    case = small_case(seed(11, mode, layers), mode=mode, layers=layers, bidirectional=False, T=6, head="given")
    for s in range(6):
        dx = gradients(case, loss_step=s)["dx"]
        assert not dx[s + 1 :].any()
        assert dx.shape == case.x.shape


@pytest.mark.parametrize("head", ["ones", "last", "given"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_the_loss_steps_add_up_to_the_whole_head(mode: str, bidirectional: bool, head: str) -> None:
    case = small_case(seed(12, mode, bidirectional), mode=mode, bidirectional=bidirectional, T=6, H=4, head=head)
    steps = [5] if head == "last" else range(6)
    parts = [flat(gradients(case, loss_step=s)) for s in steps]
    whole = flat(gradients(case))
    for name in whole.keys() - {"y"}:
        total = sum(part[name] for part in parts)
        scale = max(np.abs(part[name]).max() for part in parts)
        assert np.abs(total - whole[name]).max() <= TOLERANCE * scale, name


@pytest.mark.parametrize("mode", MODES)
def test_a_prefix_is_the_case_cut_short(mode: str) -> None:
    case = small_case(seed(13, mode), mode=mode, layers=2, bidirectional=True, T=6, head="given+final")
    cut = case.replace(x=case.x[:4], head=case.head[:4], seq_lens=())
    found, exact = flat(gradients(case, 4)), flat(gradients(cut))
    assert all(np.array_equal(found[name], exact[name]) for name in exact)


def test_the_answer_does_not_depend_on_what_was_requested_or_computed_before() -> None:
    case = small_case(seed(14), mode="gru", T=5)
    first = flat(gradients(case))
    for requested in (("x",), ("params",), ("h0", "x")):
        again = flat(gradients(case.replace(requested=requested)))
        assert all(np.array_equal(again[name], first[name]) for name in first)


@pytest.mark.parametrize(
    ("seq_len", "loss_step", "key"), [(0, None, "seq_len"), (6, None, "seq_len"), (3, 3, "loss_step")]
)
def test_a_length_or_step_outside_the_case_is_refused(seq_len: int, loss_step: int | None, key: str) -> None:
    with pytest.raises(BadInputError, match=rf"{key}: expected \d to \d, found"):
        gradients(small_case(seed(15), T=5), seq_len, loss_step)


# -- published numbers -------------------------------------------------------------------------------------------


def test_flux_1547_has_the_right_answer_of_the_report() -> None:
    found = gradients(load_case("flux-1547"))
    expected = {"dweight_ih": 2.8003, "dweight_hh": 1.0, "dbias_ih": 2.001, "dbias_hh": 2.001}
    for name, value in expected.items():
        assert found[name][0][0].item() == pytest.approx(value, rel=1e-15)
    assert found["dh0"].item() == pytest.approx(0.001001, rel=1e-15)


def test_mxnet_21143_has_the_digits_of_onednn() -> None:
    # 7e-8 apart, not 3e-8: oneDNN forms 1 - h**2 in float32, with h up to 0.999.
    published = [
        [0.14598744, 0.05498122],
        [0.01734746, 0.00673208],
        [0.01820615, 0.00685919],
        [0.02004767, 0.00749636],
        [0.02612575, 0.00999804],
    ]
    for dtype in (np.float64, np.float32):
        dx = gradients(load_case("mxnet-21143"), 5, dtype=dtype)["dx"]
        assert np.abs(dx[:, 0] - published).max() < 7e-8
    check(gradients(load_case("mxnet-21143")), by_complex_step(load_case("mxnet-21143")))


# -- noisy arithmetic --------------------------------------------------------------------------------------------


def noisy(case: Case, unit: float, replicas: int = 4, seed: int = 0) -> list[dict[str, Any]]:
    tape = Tape(case, case.seq_len, Noisy(unit, np.random.default_rng(seed), replicas))
    found = tape.pull(*tape.cotangents(*case.heads()))
    return [without_replicas(found, index) for index in range(replicas)]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_noise_of_unit_zero_is_exact_arithmetic(mode: str, bidirectional: bool) -> None:
    rng = seed(16, mode, bidirectional)
    for _ in range(5):
        case = small_case(rng, mode=mode, bidirectional=bidirectional)
        exact = gradients(case)
        for replica in noisy(case, 0.0, replicas=2):
            check(replica, exact, 1e-13)  # BLAS sums wider products in another order


@pytest.mark.parametrize("mode", MODES)
def test_replicas_are_independent_samples_of_the_size_of_the_unit(mode: str) -> None:
    case = small_case(seed(17, mode), mode=mode, layers=2, bidirectional=True, T=5, B=3, I=4, H=8, scale=0.5)
    exact = flat(gradients(case))
    size = {}
    for unit in (2.0**-24, 2.0**-40):
        replicas = [flat(replica) for replica in noisy(case, unit, replicas=32)]
        for name in ("y", "dx", "dh0", "dweight_hh[0][0]", "dweight_ih[1][1]", "dbias_ih[0][1]"):
            deviations = np.array([(replica[name] - exact[name]).ravel() for replica in replicas])
            assert (deviations.std(axis=0) > 0).mean() > 0.4, name  # an inactive ReLU has no noise
            size[unit, name] = np.sqrt(np.mean(deviations**2)) / np.abs(exact[name]).max()
            assert 0.05 * unit < size[unit, name] < 1e3 * unit, name
        shared = np.corrcoef([(replica["y"] - exact["y"]).ravel() for replica in replicas])
        # Elements of one replica share noise, so a single pair may look alike; many pairs may not.
        assert np.abs(shared[np.triu_indices(32, 1)].mean()) < 0.1
    ratios = [size[2.0**-24, name] / size[unit, name] for unit, name in size if unit == 2.0**-40]
    assert all(2**14 < ratio < 2**18 for ratio in ratios)


def test_noise_repeats_itself_from_the_same_seed_only() -> None:
    case = small_case(seed(18), mode="gru", T=3)
    first, again, other = (noisy(case, 2.0**-24, seed=s)[0]["y"] for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
