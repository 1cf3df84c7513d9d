"""Cases out of live torch modules: the layout is right, as autograd says, and what does not fit is refused."""

from __future__ import annotations

import importlib.metadata
import itertools
import types
from typing import Any

import numpy as np
import pytest
from random_cases import HEADS, random_case

import bridge
from bridge import BadInputError, Case
from bridge.backends import torch as torch_backend
from bridge.backends.registry import Sources, select
from bridge.backends.torch import fields_from_torch
from bridge.case import PARAM_NAMES
from bridge.reference import gradients


class Tensor:
    """What is asked of a tensor: its dtype, and its values by way of detach and cpu."""

    def __init__(self, array: Any, dtype: str = "float64") -> None:
        self.array, self.dtype = np.asarray(array), f"torch.{dtype}"

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.array


def duck(mode: str = "LSTM", layers: int = 2, bidirectional: bool = True, bias: bool = True, **changes: Any) -> Any:
    """A module that quacks like torch's, with I = 3 and H = 2."""
    rng = np.random.default_rng(0)
    rows = {"LSTM": 8, "GRU": 6}.get(mode, 2)
    fields: dict[str, Any] = {
        "mode": mode, "num_layers": layers, "bidirectional": bidirectional, "bias": bias, "batch_first": False,
        "proj_size": 0, "dropout": 0.0, "training": True, "hidden_size": 2, "input_size": 3,
    }  # fmt: skip
    for layer in range(layers):
        for way in ("", "_reverse")[: 1 + bidirectional]:
            inputs = 2 * (1 + bidirectional) if layer else 3
            fields[f"weight_ih_l{layer}{way}"] = Tensor(rng.standard_normal((rows, inputs)))
            fields[f"weight_hh_l{layer}{way}"] = Tensor(rng.standard_normal((rows, 2)))
            if bias:
                fields[f"bias_ih_l{layer}{way}"] = Tensor(rng.standard_normal(rows))
                fields[f"bias_hh_l{layer}{way}"] = Tensor(rng.standard_normal(rows))
    return types.SimpleNamespace(**(fields | changes))


X = np.random.default_rng(1).standard_normal((5, 4, 3))


def test_every_array_of_the_module_lands_in_its_place() -> None:
    module = duck()
    states = np.ones((4, 4, 2)), 2 * np.ones((4, 4, 2))
    case = Case(**fields_from_torch(module, Tensor(X), [Tensor(state) for state in states]))
    assert (case.name, case.mode, case.dtype) == ("torch-lstm", "lstm", "float64")
    assert (case.layers, case.directions, case.hidden_size) == (2, 2, 2)
    assert case.requested == ("x", "params", "h0", "c0")
    assert np.array_equal(case.x, X)
    assert np.array_equal(case.h0, states[0])
    assert np.array_equal(case.c0, states[1])
    for layer in range(2):
        for direction, way in enumerate(("", "_reverse")):
            for name, array in zip(PARAM_NAMES, case.params[layer][direction], strict=True):
                assert np.array_equal(array, getattr(module, f"{name}_l{layer}{way}").array)


@pytest.mark.parametrize(("mode", "name"), [("RNN_TANH", "rnn_tanh"), ("RNN_RELU", "rnn_relu"), ("GRU", "gru")])
def test_without_states_they_are_zero_and_there_is_no_cell_state(mode: str, name: str) -> None:
    case = Case.from_torch(duck(mode), X, head="last")
    assert (case.name, case.mode, case.head, case.c0) == (f"torch-{name}", name, "last", None)
    assert case.requested == ("x", "params", "h0")
    assert not case.h0.any()
    assert case.h0.shape == (4, 4, 2)


def test_fields_given_by_name_win() -> None:
    case = Case.from_torch(duck(), X, name="mine", requested=["x"], seq_lens=[1, 5])
    assert (case.name, case.requested, case.seq_lens) == ("mine", ("x",), (1, 5))


def test_batch_first_turns_the_sequence_and_not_the_states() -> None:
    case = Case.from_torch(duck("GRU", batch_first=True), Tensor(X.swapaxes(0, 1)), Tensor(np.ones((4, 4, 2))))
    assert np.array_equal(case.x, X)
    assert case.h0.shape == (4, 4, 2)


def test_missing_biases_are_zero() -> None:
    case = Case.from_torch(duck(bias=False), X)
    assert all(not bias.any() for cells in case.params for cell in cells for bias in cell[2:])
    assert case.params[1][1].bias_hh.shape == (8,)


def test_dropout_that_does_nothing_is_no_obstacle() -> None:
    assert Case.from_torch(duck(dropout=0.5, training=False), X).layers == 2
    assert Case.from_torch(duck(layers=1, dropout=0.5), X).layers == 1


@pytest.mark.parametrize(
    ("module", "x", "states", "message"),
    [
        (object(), X, None, "torch module object: expected a torch.nn.RNN, LSTM or GRU, found object"),
        (duck("LSTM_CELL"), X, None, ": expected a torch.nn.RNN, LSTM or GRU, found SimpleNamespace"),
        (types.SimpleNamespace(mode="LSTM"), X, None, ": expected a torch.nn.RNN, LSTM or GRU, found SimpleNamespace"),
        (
            duck(proj_size=1),
            X,
            None,
            "proj_size: expected none (a projection of the hidden state is not covered, see docs/limits.md), found 1",
        ),
        (
            duck(dropout=0.5),
            X,
            None,
            "dropout: expected none (dropout above 0 is not covered, see docs/limits.md), found 0.5 in training mode",
        ),
        (duck(), X[0], None, "x: expected a batched sequence (T, B, I), found shape (4, 3)"),
        (duck(batch_first=True), X[0], None, "x: expected a batched sequence (B, T, I), found shape (4, 3)"),
        (duck(), "text", None, "x: expected a tensor or array of numbers, found str"),
        (duck(), Tensor(X, "float32"), None, "x: expected float64 like the weights, found float32"),
        (duck(), X, Tensor(X), "states: expected the pair (h0, c0), found Tensor"),
        (duck(), X, (X, X, X), "states: expected the pair (h0, c0), found tuple"),
        (duck(), X[:, :, :2], None, "params[0][0].weight_ih: expected shape (8, 2) (G*H, I), found shape (8, 3)"),
        (duck("GRU"), X, Tensor(X), "h0: expected shape (4, 4, 2) (layers*D, B, H), found shape (5, 4, 3)"),
        (
            duck(weight_ih_l0=Tensor(np.ones((8, 3)), "bfloat16")),
            X,
            None,
            "weight_ih_l0: expected float32 or float64, found bfloat16",
        ),
    ],
)
def test_what_a_case_cannot_express_gets_one_clear_line(module: Any, x: Any, states: Any, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        Case.from_torch(module, x, states)
    assert str(caught.value).endswith(message)
    assert len(str(caught.value).splitlines()) == 1


# -- the real torch ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    module = pytest.importorskip("torch", reason="torch is optional; it is compared with only where it is installed")
    module.set_num_threads(1)
    return module


def built(torch: Any, mode: str, **options: Any) -> Any:
    if mode.startswith("rnn"):
        return torch.nn.RNN(nonlinearity=mode[4:], **options)
    return {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[mode](**options)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["TBI", "BTI"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "bidirectional"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("mode", ["rnn_tanh", "rnn_relu", "lstm", "gru"])
def test_the_reference_of_the_case_equals_autograd(
    torch: Any, mode: str, layers: int, bidirectional: bool, batch_first: bool, bias: bool
) -> None:
    torch.manual_seed(0)
    options = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": batch_first, "bias": bias}
    module = built(torch, mode, input_size=3, hidden_size=4, dtype=torch.float64, **options)
    directions = 1 + bidirectional

    def normal(*shape: int) -> Any:
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    x = normal(2, 5, 3) if batch_first else normal(5, 2, 3)
    states = [normal(layers * directions, 2, 4) for _ in range(1 + (mode == "lstm"))]
    given = tuple(states) if mode == "lstm" else states[0]
    y, finals = module(x, given)
    finals = finals if mode == "lstm" else (finals,)
    heads = [torch.randn_like(output) for output in (y, *finals)]
    torch.autograd.backward([y, *finals], heads)

    def time_first(tensor: Any) -> Any:
        array = tensor.detach().numpy()
        return array.swapaxes(0, 1) if batch_first else array

    final_heads = dict(zip(("head_hn", "head_cn"), (head.numpy() for head in heads[1:]), strict=False))
    found = gradients(Case.from_torch(module, x, given, head=time_first(heads[0]), **final_heads))
    expected = {"y": time_first(y), "dx": time_first(x.grad)}
    expected |= dict(zip(("dh0", "dc0"), (state.grad.numpy() for state in states), strict=False))
    for layer in range(layers):
        for direction in range(directions):
            for name in PARAM_NAMES[: 4 if bias else 2]:
                key = f"d{name}[{layer}][{direction}]"
                found[key] = found[f"d{name}"][layer][direction]
                expected[key] = getattr(module, f"{name}_l{layer}" + "_reverse" * direction).grad.numpy()
    for name, right in expected.items():
        assert np.abs(found[name] - right).max() <= 1e-12 * np.abs(right).max(), name


def test_a_float32_module_gives_a_float32_case(torch: Any) -> None:
    case = Case.from_torch(torch.nn.GRU(3, 4), torch.ones(5, 2, 3))
    assert (case.dtype, case.x.dtype) == ("float32", np.dtype("float32"))


@pytest.mark.parametrize("kind", ["LSTMCell", "Linear", "projected", "half", "bfloat16", "packed"])
def test_torch_modules_and_inputs_that_do_not_fit_are_refused(torch: Any, kind: str) -> None:
    x = torch.ones(5, 2, 3)
    module = torch.nn.LSTM(3, 4)
    if kind in ("LSTMCell", "Linear"):
        module = getattr(torch.nn, kind)(3, 4)
    elif kind == "projected":
        module = torch.nn.LSTM(3, 4, proj_size=2)
    elif kind == "packed":
        x = torch.nn.utils.rnn.pack_padded_sequence(x, [5, 3])
    else:
        module = getattr(module, kind)()
    with pytest.raises(BadInputError, match=r"^torch module .*: expected .*, found "):
        Case.from_torch(module, x)


# -- torch.nn as a live backend ----------------------------------------------------------------------------------

live = pytest.mark.live


def torch_verdicts(cases: Any, **how: Any) -> Any:
    pytest.importorskip("torch", reason="torch is not installed: pip install gradbridge[torch]")
    return bridge.compare(cases, ["torch-*"], **how).summary


@live
def test_it_agrees_on_every_shipped_case() -> None:
    table = torch_verdicts(None)
    identity = table["case"] == "flux-1547"
    assert set(table["verdict"][~identity]) == {"agrees"}
    assert set(table["verdict"][identity]) == {"unsupported"}
    assert set(table["reason"][identity]) == {"torch.nn.RNN has no identity activation"}
    assert set(table["case"]) == set(bridge.shipped_cases())


@live
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_agrees_for_every_mode_head_and_subset_of_requests(dtype: str) -> None:
    rng = np.random.default_rng(0)
    cases = []
    for mode in ("rnn_tanh", "rnn_relu", "lstm", "gru"):
        names = ("x", "params", "h0", "c0")[: 4 if mode == "lstm" else 3]
        subsets = [s for n in range(1, len(names) + 1) for s in itertools.combinations(names, n)]
        for number, requested in enumerate(subsets):
            name = f"{mode}-{'-'.join(requested)}"
            head = HEADS[number % len(HEADS)]
            cases.append(random_case(rng, mode=mode, dtype=dtype, requested=requested, head=head, name=name, T=4))
    assert {(c.layers, c.directions) for c in cases} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    table = torch_verdicts(cases, loss_steps=True)
    assert set(table["verdict"]) == {"agrees"}
    assert len(table) == sum(len(case.quantities) for case in cases)


@live
def test_its_relations_hold_accumulation_too() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install gradbridge[torch]")
    case = random_case(np.random.default_rng(3), mode="gru", layers=1, bidirectional=0, T=4, B=2, H=3, I=2)
    found = bridge.compare(case, ["torch-*"], relations=True).relations.set_index("relation")["verdict"]
    assert "violated" not in set(found)
    assert found["accumulation"] == "holds"


def test_without_torch_it_is_not_listed_and_unavailable_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(torch_backend.importlib.metadata, "version", version)
    assert not [b for b in select(["*"], Sources(live=False)) if b.name.startswith("torch")]
    summary = bridge.compare("flux-gru", ["torch-*"]).summary
    assert set(summary["verdict"]) == {"unavailable"}
    assert set(summary["reason"]) == {"PyTorch is not installed; get it with: pip install gradbridge[torch]"}
