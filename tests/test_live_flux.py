"""Real Flux, where one is found: named by juliacall's variables or gradbridge.toml, or installed by juliapkg."""

import pytest

import bridge
from bridge.answers import Task, blocks
from bridge.backends import flux, recorded


def recording_of(info):
    return next((one for one in recorded.find() if one.line == f"flux-{info['version']}"), None)


@pytest.mark.live
def test_a_live_line_has_the_variants_that_were_recorded_of_it(line):
    _, info = line
    recording = recording_of(info)
    if recording is None:
        pytest.skip(f"no recording of Flux {info['version']} is shipped")
    assert tuple(info["variants"].split()) == recording.variants


@pytest.mark.live
@pytest.mark.parametrize("name", ["flux-1547", "flux-gru"])
def test_live_answers_equal_the_shipped_recording(line, name):
    worker, info = line
    recording = recording_of(info)
    if recording is None:
        pytest.skip(f"no recording of Flux {info['version']} is shipped")
    case = bridge.load_case(name)
    replies = recording.replies(name)
    chosen = [variant for variant in recording.variants if variant in flux.TELLING] + [
        variant for variant in recording.variants if variant.endswith(("broadcast-implicit-stale", "for-explicit-ref"))
    ]
    assert chosen
    for variant in chosen:
        for step in (None, 0):
            live = worker.ask(Task(case, case.seq_len, step), variant)
            known = replies[variant, name, case.seq_len, step]
            assert list(live.answers) == list(known.answers)
            for quantity, answer in live.answers.items():
                other = known.answers[quantity]
                assert (answer.verdict, answer.nothing) == (other.verdict, other.nothing), (variant, quantity)
                if answer.values is not None:
                    pairs = zip(blocks(answer.values), blocks(other.values), strict=True)
                    for (_, _, ours), (_, _, theirs) in pairs:
                        assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12, nan_ok=True)


@pytest.mark.live
def test_float32_several_layers_and_given_heads_agree_through_an_explicit_cell(line):
    import numpy as np
    from random_cases import random_case

    worker, info = line
    for mode in ("rnn_relu", "lstm"):
        case = random_case(
            np.random.default_rng(0), mode=mode, layers=2, bidirectional=False, dtype="float32", head="given",
            T=4, B=1, H=3, requested=("x", "params", "h0"),
        )  # fmt: skip
        variant = "cell-for-implicit" if info["version"].startswith("0.11") else "cell-for-explicit"
        truth = bridge.reference.gradients(case)
        answers = worker.ask(Task(case, 4), variant).answers
        for quantity in ("y", "dweight_ih", "dweight_hh", "dbias_ih"):
            assert answers[quantity].values is not None, answers[quantity]
            pairs = zip(blocks(answers[quantity].values), blocks(truth[quantity]), strict=True)
            for (_, _, ours), (_, _, theirs) in pairs:
                assert ours.dtype == np.float32
                assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)


@pytest.mark.live
def test_a_julia_exception_is_a_crash_with_its_first_line(line):
    worker, info = line
    case = bridge.load_case("flux-1547")
    answers = worker.ask(Task(case, 2), "no-such-variant").answers
    assert {answer.verdict for answer in answers.values()} == {"unsupported"}
    assert "no variant is called no-such-variant" in answers["dx"].reason
    if info["version"].startswith("0.14"):
        answers = worker.ask(Task(case, 2), "recur-comprehension-explicit-inside").answers
        assert {answer.verdict for answer in answers.values()} == {"crashed"}
        assert answers["dx"].reason.startswith("MethodError: no method matching +")


@pytest.mark.live
def test_julia_that_dies_is_survived(line):
    worker, _ = line
    case = bridge.load_case("flux-1547")
    assert worker._process is not None
    worker._process.kill()
    answers = worker.ask(Task(case, 2), "cell-for-implicit").answers
    assert {answer.verdict for answer in answers.values()} == {"crashed"}
    assert "SIGKILL" in answers["dx"].reason
