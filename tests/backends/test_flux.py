"""Flux without a Julia: conversions, what is made of what Zygote returned, and what juliapkg would install."""

import json
from pathlib import Path

import numpy as np
import pytest
from random_cases import random_case

import bridge
from bridge.backends import flux
from bridge.backends.flux import Name, interpret, merged_biases
from bridge.errors import UnsupportedError


def gru(**changes):
    case = random_case(np.random.default_rng(0), mode="gru", layers=1, bidirectional=False, dtype="float64", H=3, B=2)
    weights = case.params[0][0]
    bias = np.array(weights.bias_hh)
    bias[2 * case.hidden_size :] = 0
    case = case.replace(params=[[weights._replace(bias_hh=bias)]], requested=("x", "params", "h0"))
    return case.replace(**changes)


@pytest.mark.parametrize("mode", ["rnn_tanh", "rnn_identity", "lstm"])
def test_both_biases_merged_into_one_leave_outputs_and_all_other_gradients_as_they_are(mode):
    case = random_case(np.random.default_rng(1), mode=mode, layers=2, bidirectional=False, dtype="float64")
    merged = case.replace(
        params=[
            [weights._replace(bias_ih=bias, bias_hh=0 * bias)]
            for (weights,), bias in zip(case.params, merged_biases(case), strict=True)
        ]
    )
    one, other = bridge.reference.gradients(case), bridge.reference.gradients(merged)
    for name in ("y", "dx", "dh0"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-12, atol=1e-14)


def test_a_grus_merged_bias_leaves_outputs_as_they_are():
    case = gru()
    weights, (bias,) = case.params[0][0], merged_biases(case)
    merged = case.replace(params=[[weights._replace(bias_ih=bias, bias_hh=0 * bias)]])
    np.testing.assert_allclose(
        bridge.reference.gradients(case)["y"], bridge.reference.gradients(merged)["y"], rtol=1e-13
    )


def test_a_gru_that_flux_cannot_express_is_refused_with_the_reason():
    case = random_case(np.random.default_rng(0), mode="gru", layers=1, bidirectional=False)
    with pytest.raises(UnsupportedError, match="bias_hh of layer 0 must be zero in its n rows"):
        merged_biases(case)


def test_two_directions_are_refused():
    with pytest.raises(UnsupportedError, match="no bidirectional layer"):
        merged_biases(random_case(np.random.default_rng(0), mode="lstm", bidirectional=True))


def raw_of(case, variant="cell-for-explicit"):
    """What a right Flux returns: the reference's gradients in FluxBridge's keys."""
    found = bridge.reference.gradients(case)
    raw = {"y": found["y"], "dx": found["dx"], "dh0": found["dh0"]}
    if case.mode == "lstm":
        raw["dc0"] = found["dc0"]
    for key, name in (("dWi", "dweight_ih"), ("dWh", "dweight_hh"), ("db", "dbias_ih")):
        raw[key] = [block for (block,) in found[name]]
    return raw


@pytest.mark.parametrize("mode", ["rnn_relu", "lstm", "gru"])
def test_gradients_come_back_by_the_chain_rule(mode):
    case = gru() if mode == "gru" else random_case(
        np.random.default_rng(2), mode=mode, layers=2, bidirectional=False, dtype="float64",
        requested=("x", "params", "h0"),
    )  # fmt: skip
    truth = bridge.reference.gradients(case)
    answers = interpret(case, "cell-for-explicit", raw_of(case)).answers
    assert list(answers) == list(case.quantities)
    for layer in range(case.layers):
        for name in ("dweight_ih", "dweight_hh", "dbias_ih", "dbias_hh"):
            ours, theirs = answers[name].values[layer][0], truth[name][layer][0]
            if mode == "gru" and name == "dbias_hh":
                n = 2 * case.hidden_size
                assert np.isnan(ours[n:]).all()
                assert answers[name].inexpressible
                ours, theirs = ours[:n], theirs[:n]
            np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(answers["dh0"].values, truth["dh0"])


def test_what_zygote_returned_as_nothing_is_nothing_and_what_was_not_asked_is_unsupported():
    case = bridge.load_case("flux-rnn-tanh")
    raw = {"dWi": [None], "dWh": [None], "db": [None], "dh0": None, "dx": np.zeros((5, 2, 2))}
    answers = interpret(case, "recur-for-explicit", raw).answers
    assert [name for name, answer in answers.items() if answer.nothing] == [
        "dweight_ih", "dweight_hh", "dbias_ih", "dbias_hh", "dh0",
    ]  # fmt: skip
    implicit = interpret(case, "recur-for-implicit-weights", {key: raw[key] for key in ("dWi", "dWh", "db")}).answers
    assert implicit["dx"].verdict == "unsupported"
    assert "implicit" in implicit["dx"].reason
    assert implicit["dh0"].verdict == "unsupported"


def test_an_initial_states_gradient_in_the_state_field_is_dh0_and_says_where_it_was_found():
    case = bridge.load_case("flux-lstm")
    truth = bridge.reference.gradients(case)
    raw = raw_of(case) | {"dh0": None, "dc0": None, "dstate_h": truth["dh0"], "dstate_c": truth["dc0"]}
    answers = interpret(case, "recur-for-explicit", raw).answers
    for name in ("dh0", "dc0"):
        np.testing.assert_array_equal(answers[name].values, truth[name])
        assert "state field" in answers[name].reason


def test_a_vector_states_gradient_is_summed_over_the_batch_and_marked_so():
    case = bridge.load_case("flux-rnn-tanh")
    summed = bridge.reference.gradients(case)["dh0"].sum(axis=1)
    answer = interpret(case, "recur-for-implicit", raw_of(case) | {"dh0": summed, "batch_summed": True}).answers["dh0"]
    assert answer.batch_summed
    assert answer.values.shape == (1, 1, 3)


def test_a_carried_state_is_reported_as_where_the_run_started():
    case = bridge.load_case("flux-rnn-tanh")
    start = np.full((1, 2, 3), 0.25)
    reply = interpret(case, "recur-for-implicit-stale", raw_of(case) | {"dh0": None, "start_h": start})
    np.testing.assert_array_equal(reply.start["h0"], start)
    assert reply.answers["dh0"].verdict == "unsupported"


def test_names_come_apart():
    assert Name.parse("recur-broadcast-implicit") == ("recur", "broadcast", "implicit", "weights+state", "before", "")
    assert Name.parse("chain-map-implicit-weights-inside")[3:] == ("weights", "inside", "")
    assert Name.parse("recur-for-explicit-stale")[3:] == ("weights+state", "none", "")
    assert Name.parse("closure-comprehension-explicit-local-struct")[3:] == ("weights+state", "before", "local-struct")
    assert Name.parse("closure-map-implicit-weights-global")[3:] == ("weights", "before", "global")


ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import juliapkg.deps
compat, packages = juliapkg.deps.find_requirements()
print(json.dumps([str(compat), {p.name: str(p.version) for p in packages}]))
"""


@pytest.mark.parametrize(("line", "versions"), [("0.14", ("0.14.25", "0.6.73")), ("0.16", ("0.16.5", "0.7.10"))])
def test_juliapkg_itself_reads_which_julia_and_packages_a_line_would_install(run_python, monkeypatch, line, versions):
    pytest.importorskip("juliapkg", reason="juliacall is not installed: pip install juliacall")
    julia, packages = json.loads(run_python(ASK, flux.JULIA / "envs" / line).splitlines()[-1])
    assert packages["Flux"] == f"={versions[0]}"
    assert packages["Zygote"] == f"={versions[1]}"
    assert "PythonCall" in packages
    assert "1.10" in julia
    assert flux.MANAGED[line] == versions[0]


def test_a_managed_lines_worker_reads_its_own_juliapkg_file_and_project(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADBRIDGE_CACHE", str(tmp_path))
    lines = flux.managed_lines()
    assert [line.version for line in lines] == ["0.14.25", "0.16.5"]
    assert not any(line.installed for line in lines)
    assert len({line.launch.env["PYTHON_JULIAPKG_PROJECT"] for line in lines}) == 2
    for line in lines:
        (folder,) = line.launch.path
        assert "Flux" in Path(folder, "juliapkg.json").read_text()
        assert line.launch.env["PYTHON_JULIACALL_HANDLE_SIGNALS"] == "yes"
    (tmp_path / "flux-0.14" / "pyjuliapkg").mkdir(parents=True)
    (tmp_path / "flux-0.14" / "pyjuliapkg" / "meta.json").write_text("{}")
    assert [line.installed for line in flux.managed_lines()] == [True, False]


def test_a_project_named_by_the_user_must_be_there(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHON_JULIACALL_EXE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bridge.BadInputError, match="a Julia on PATH"):
        flux.named_lines(str(tmp_path))
    (tmp_path / "julia").write_text("#!/bin/sh\n")
    (tmp_path / "julia").chmod(0o755)
    with pytest.raises(bridge.BadInputError, match="--julia-project: project: expected the folder of a Julia project"):
        flux.named_lines(str(tmp_path / "nowhere"))
    (line,) = flux.named_lines(str(tmp_path))
    assert line.launch.env["PYTHON_JULIACALL_PROJECT"] == str(tmp_path)
    assert line.launch.env["PYTHON_JULIACALL_EXE"] == str(tmp_path / "julia")
    assert line.version == ""


def test_juliacalls_own_variables_name_an_environment(tmp_path, monkeypatch):
    (tmp_path / "julia").write_text("#!/bin/sh\n")
    (tmp_path / "julia").chmod(0o755)
    monkeypatch.setenv("PYTHON_JULIACALL_EXE", str(tmp_path / "julia"))
    monkeypatch.setenv("PYTHON_JULIACALL_PROJECT", str(tmp_path))
    assert [line.origin for line in flux.named_lines()] == ["PYTHON_JULIACALL_EXE and PYTHON_JULIACALL_PROJECT"]


def test_what_a_start_showed_is_remembered_for_names_and_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADBRIDGE_CACHE", str(tmp_path))
    line = flux.managed_lines()[0]
    flux.remember(line, {"version": "0.14.25", "variants": "cell-for-explicit recur-map-implicit"}, 12.34)
    known = flux.managed_lines()[0]
    assert (known.variants, known.seconds) == (("cell-for-explicit", "recur-map-implicit"), 12.3)
    (tmp_path / "lines.json").write_text("nonsense")
    assert flux.managed_lines()[0].variants == ()


def test_workarounds_are_other_applications_of_the_same_variant():
    found = [option.variant for option in flux.workarounds("recur-broadcast-implicit-weights")]
    assert found[:2] == ["recur-map-implicit-weights", "recur-for-implicit-weights"]
