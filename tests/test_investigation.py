"""``gradbridge flux`` from the shipped recordings: the seed question's table, and advice computed from it."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from observations import read

import bridge
from bridge.backends import recorded
from bridge.backends.registry import Sources
from bridge.cli import main
from bridge.investigation import Investigation

OBSERVED = Path(__file__).parent / "data"

TABLE = {  # FLUX.md: dL/dWx by variant and version; None is nothing, absent is not to be had
    "recur-broadcast-implicit": (2.8003, 2.8003, 2.8),
    "recur-broadcast-implicit-weights": (2.8003, 2.8003, 2.8025),
    "recur-broadcast-explicit": (None, 2.8003, 2.8025),
    "recur-comprehension-implicit": (2.8003, 2.8003, 2.8003),
    "recur-comprehension-explicit": (None, 2.8003, 5.3003),
    "recur-map-explicit": (None, 2.8003, 2.8003),
    "recur-for-explicit": (None, 2.8003, 2.8003),
    "chain-broadcast-implicit": (2.8, 2.8, 2.8),
    "chain-broadcast-implicit-weights": (2.8025, 2.8025, 2.8025),
    "chain-broadcast-explicit": (None, 2.8025, 3.1025),
    "chain-comprehension-explicit": (None, 2.8003, 5.3003),
    "chain-map-explicit": (None, 2.8003, 5.3003),
    "closure-broadcast-explicit-struct": (None, 2.8025, 2.8025, 2.8025),
    "closure-comprehension-explicit-struct": (None, 2.8003, 5.3003, 5.3003),
    "closure-map-explicit-struct": (None, 2.8003, 2.8003, 2.8003),
    "closure-broadcast-implicit-weights-global": (2.8025, "", 2.8025, 2.8025),
    "closure-comprehension-implicit-weights-global": (2.8003, "", 2.8025, 2.8025),
    "closure-for-implicit-weights-global": (2.8003, "", 2.8003, 2.8003),
}
LATER = {  # 0.14.25 and 0.16.5 alone were observed
    "recur-comprehension-implicit-global": (2.8, ""),
    "recur-map-implicit-global": (2.8003, ""),
    "recur-array3d-implicit": (2.8003, ""),
    "recur-array3d-explicit": (5.3003, ""),
    "closure-comprehension-explicit-local-struct": (8.1006, 8.1006),
    "closure-map-explicit-ref": (2.8003, 2.8003),
    "closure-broadcast-explicit-captured": (2.8025, 2.8025),
    "layer-sequence-explicit": ("", 2.8003),
    "cell-for-explicit": (2.8003, 2.8003),
}
VERSIONS = ("0.11.6", "0.12.1", "0.14.25", "0.16.5")


@pytest.fixture(scope="module")
def seed():
    return Investigation(bridge.compare("flux-1547", ["flux-*"], sources=Sources(live=False)))


def expected():
    for variant, values in TABLE.items():
        for version, value in zip(VERSIONS, values, strict=False):
            if value != "":
                yield variant, version, value
    for variant, values in LATER.items():
        for version, value in zip(VERSIONS[2:], values, strict=True):
            if value != "":
                yield variant, version, value


@pytest.mark.parametrize(("variant", "version", "value"), list(expected()))
def test_the_seed_questions_table(seed, variant, version, value):
    (cell,) = [cell for cell in seed.cells if cell.backend == f"flux-{version}/{variant}"]
    if value is None:
        assert cell.verdict == "nothing"
    else:
        assert cell.value == pytest.approx(value, abs=1e-12)
        assert (cell.verdict == "right") == (value == 2.8003 and not cell.wrong)
        assert ("dweight_ih" in cell.wrong) == (value != 2.8003)


def test_every_wrong_cell_has_a_named_fault(seed):
    assert {finding.match.fault for finding in seed.comparison.findings} <= {
        "nothing-returned", "forward-order", "forward-order-absorbed", "forward-order-absorbed-and-reset",
        "counted-repeatedly", "counted-repeatedly-and-once-more", "initial-state-counted-repeatedly",
        "forward-order + counted-repeatedly", "forward-order + initial-state-counted-repeatedly",
    }  # fmt: skip


def test_tanh_lstm_and_gru_are_right_and_wrong_in_the_same_variants():
    cases = ["flux-rnn-tanh", "flux-lstm", "flux-gru"]
    cells = Investigation(bridge.compare(cases, ["flux-*"], sources=Sources(live=False))).cells
    pattern = {}
    for cell in cells:
        pattern.setdefault((cell.version, cell.name), {})[cell.case] = cell.verdict
    differing = {key: found for key, found in pattern.items() if len(set(found.values())) > 1}
    assert not differing


def test_advice_is_computed_from_the_table(seed):
    advice = " ".join(seed.advice())
    assert "Right in every version here (0.11.6, 0.12.1, 0.14.25, 0.16.5)" in advice
    assert "Right only in 0.12.1, not in 0.11.6, 0.14.25" in advice
    assert "Never right" in advice


def test_the_terminal_table_fits_100_columns(tmp_path):
    result = CliRunner().invoke(main, ["flux", "flux-1547", "--no-live", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    table = [
        line for line in result.output.splitlines() if line.startswith(("recur", "chain", "closure", "cell", "layer"))
    ]
    assert len(table) > 150
    assert max(map(len, table)) <= 100
    assert (tmp_path / "flux.csv").read_text().startswith("case,model,application,api,requested,reset,state,version")


@pytest.mark.parametrize("version", VERSIONS)
def test_shipped_recordings_equal_what_was_observed_of_real_flux(version):
    cases = {name: bridge.load_case(name) for name in ("flux-1547", "flux-gru")}
    observed = read(OBSERVED / f"flux-{version}.csv", cases)
    (recording,) = [one for one in recorded.find() if one.line == f"flux-{version}"]
    replies = {key: reply for name in cases for key, reply in recording.replies(name).items()}
    from bridge.answers import blocks
    from bridge.backends.flux import interpret

    compared = 0
    for (name, variant, step), raw in observed.items():
        reply = replies[variant, name, cases[name].seq_len, step]
        if "error" in raw:
            assert reply.answers["dweight_ih"].reason.startswith(raw["error"][:30])
            continue
        for quantity, answer in interpret(cases[name], variant, raw).answers.items():
            if answer.values is None or (step is not None and quantity not in ("dx", "y")):
                continue
            pairs = zip(blocks(answer.values), blocks(reply.answers[quantity].values), strict=True)
            for (_, _, theirs), (_, _, ours) in pairs:
                assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12, nan_ok=True)
                compared += ours.size
    assert compared > 500
