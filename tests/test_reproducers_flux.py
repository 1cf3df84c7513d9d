"""Standalone Julia scripts: complete Julia for every variant of every line, and run where a Flux is found."""

import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from random_cases import random_case

import bridge
from bridge.answers import CRASHED, TIMED_OUT, Task
from bridge.backends import flux, recorded
from bridge.reproducers import Fault, Wanted, reproduce, script
from bridge.tolerance import truth
from bridge.verdicts import DISAGREES, judge_reply

LINES = {recording.line: recording for recording in recorded.find() if recording.line.startswith("flux-")}
ALL = ("dx", "dweight_ih", "dweight_hh", "dbias_ih", "dbias_hh", "dh0", "dc0")


class Named:
    """A backend that is only written about."""

    def __init__(self, line, variant, launch=None):
        self.name, self.about, self.launch, self.group = f"{line}/{variant}", flux.about(variant), launch, line


def fault(verdict=DISAGREES, quantities=ALL):
    return Fault("finding", "A title", "What is wrong.", "Seen when: always.", verdict, tuple(quantities))


def written(line, variant, case, **changes):
    return script(Named(line, variant), Task(case, case.seq_len), fault(**changes), LINES[line].versions)


def plain(**fixed):
    """A case that Flux can express: one direction, a GRU without a hidden bias, one state for the whole batch."""
    case = random_case(np.random.default_rng(3), bidirectional=False, I=2, H=2, **fixed)
    params = [[weights._replace(bias_hh=0 * weights.bias_hh)] for (weights,) in case.params]
    states = {
        name: np.repeat(state[:, :1], case.batch, axis=1)
        for name, state in (("h0", case.h0), ("c0", case.c0))
        if state is not None
    }
    return case.replace(params=params, **states)


CASES = [
    bridge.load_case("flux-1547"),
    plain(mode="lstm", layers=1, T=3, B=1, dtype="float32", head="given+final", requested=("x", "params", "h0", "c0")),
    plain(mode="gru", layers=2, T=2, B=2, dtype="float64", head="last", requested=("params", "h0")),
    plain(mode="rnn_relu", layers=2, T=1, B=2, dtype="float64", head="given+final", requested=("x", "h0")),
]


@pytest.mark.parametrize("line", LINES)
def test_every_variant_has_a_script_that_is_complete_julia(line, tmp_path):
    program = shutil.which("fatou", path=Path(sys.executable).parent) or shutil.which("fatou")
    if program is None:
        pytest.skip("fatou, which reads Julia, is not installed: pip install 'gradbridge[check]'")
    for number, case in enumerate(CASES):
        for variant in LINES[line].variants:
            for verdict in (DISAGREES, CRASHED) if number == 0 else (DISAGREES,):
                text = written(line, variant, case, verdict=verdict)
                if case.layers > 1 and variant.endswith("global") and not variant.startswith("chain"):
                    assert text is None  # one global is one layer
                    continue
                assert text is not None, (variant, case.name)
                assert "\n\nend" not in text
                assert "\n\n\n" not in text
                (tmp_path / f"{variant}-{number}-{verdict}.jl").write_text(text)
    ran = subprocess.run([program, "lint", "."], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    broken = written(line, "cell-for-explicit", CASES[0]).replace("function main()", "function main(")
    (tmp_path / "broken.jl").write_text(broken)
    ran = subprocess.run([program, "lint", "broken.jl"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode != 0


def test_a_script_asks_what_its_variant_asks():
    line = "flux-0.14.25"
    text = written(line, "recur-broadcast-implicit-weights", CASES[0])
    assert "Flux.Recur(Flux.RNNCell(identity, Wi, Wh, b, h0))" in text
    assert "m.(xs)" in text
    assert "Flux.params(Wi, Wh, b))" in text
    assert text.index("Flux.reset!(m)") < text.index("Zygote.gradient")
    text = written(line, "chain-comprehension-explicit-inside", CASES[0])
    assert "Chain(Flux.Recur(" in text
    assert "[m(x) for x in xs]" in text
    assert text.index("Flux.reset!(m)") < text.index("ys = ")
    text = written("flux-0.16.5", "closure-map-explicit-ref", CASES[0])
    assert "kept = Ref{Any}(state)" in text
    assert "map(m, xs)" in text
    assert "using FluxBridge" not in text


def expected_of(text):
    return dict(re.findall(r'^    \("([^"]+)", (.+), [^,]+\),$', text, re.M))


def test_expected_values_are_the_questions_and_in_fluxs_layout():
    known = expected_of(written("flux-0.16.5", "closure-broadcast-explicit-struct", CASES[0]))
    assert known["dWi"] == "reshape(Float64[2.8003], 1, 1)"
    assert known["dx[1]"] == "reshape(Float64[0.5005], 1, 1)"
    assert "db" in known
    assert "dbias_hh" not in known
    lstm = CASES[1]
    text = written("flux-0.12.1", "recur-broadcast-implicit", lstm)
    merged = re.search(r"^b = Float32\[(.*)\]$", text, re.M).group(1)
    assert [float(number) for number in merged.split(",")] == pytest.approx(lstm.params[0][0].bias_ih, rel=1e-6)
    rows = re.search(r"^Wi = Float32\[(.*?)\]$", text, re.M | re.S).group(1).replace(";", "\n").strip().splitlines()
    read = np.array([[float(number) for number in row.split()] for row in rows], np.float32)
    assert np.array_equal(read, lstm.params[0][0].weight_ih)


def test_a_run_that_carries_a_state_is_measured_by_that_state():
    """FLUX.md: after an earlier call and no reset the question's truth is dWh = 3.105202, dWx and db as before."""
    known = expected_of(written("flux-0.14.25", "recur-broadcast-explicit-stale", CASES[0]))
    assert float(re.search(r"\[(.*)\]", known["dWh"]).group(1)) == pytest.approx(3.105202, rel=1e-12)
    assert known["dWi"] == "reshape(Float64[2.8003], 1, 1)"


def test_no_script_is_written_where_flux_cannot_be_asked():
    gru = plain(mode="gru", layers=1, T=2, B=1, dtype="float64", head="ones", requested=("params",))
    weights = gru.params[0][0]
    biased = gru.replace(params=[[weights._replace(bias_hh=1 + weights.bias_hh)]])
    assert written("flux-0.16.5", "cell-for-explicit", gru) is not None
    assert written("flux-0.16.5", "cell-for-explicit", biased) is None
    assert written("flux-0.16.5", "cell-for-explicit", CASES[0], verdict=TIMED_OUT) is None
    assert written("flux-0.16.5", "cell-for-explicit", CASES[0], quantities=("y",)) is None


@pytest.mark.live
@pytest.mark.parametrize("case", CASES[:2], ids=["question", "lstm"])
def test_a_script_shows_its_fault_in_real_flux_and_a_right_variant_shows_none(line, case):
    worker, info = line
    task = Task(case, case.seq_len)
    wrong, right = "closure-broadcast-explicit-struct", "closure-for-implicit-weights-captured"
    reply = worker.ask(task, wrong)
    seen = [name for name, one in judge_reply(reply, truth(task)).items() if one.verdict == DISAGREES]
    assert seen
    line_name = f"flux-{info['version']}"
    shown = Wanted(Named(line_name, wrong, worker.launch), task, fault(quantities=seen), info)
    unseen = dataclasses.replace(fault(quantities=ALL[1:5]), name="other")
    (made,) = reproduce([shown])
    assert made is not None
    assert "the fault shows" in made.printed
    assert set(made.files) == {"finding.jl", "finding.md"}
    assert "```julia" in made.files["finding.md"]
    both = reproduce([shown, Wanted(Named(line_name, right, worker.launch), task, unseen, info)])
    assert both[1] is None
    assert both[0] is not None
    assert both[0].printed.strip() == made.printed.strip()  # in one process with others, or in its own


@pytest.mark.live
def test_a_gradient_that_is_nothing_is_shown(line):
    worker, info = line
    if not info["version"].startswith("0.11"):
        pytest.skip(f"Flux {info['version']} returns nothing for no weight")
    backend = Named(f"flux-{info['version']}", "recur-map-explicit", worker.launch)
    (made,) = reproduce([Wanted(backend, Task(CASES[0], 2), fault(quantities=["dweight_ih"]), info)])
    assert made is not None
    assert "dWi found:    nothing" in made.printed
