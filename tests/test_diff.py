"""Two saved runs side by side: what is new, gone, different, or cannot be said."""

import csv
import json
import re

import pytest
from test_cli import gradbridge
from test_pytest_plugin import CASE, forgetful, right

import bridge
from bridge.diff import diff

FINDING = ("case", "backend", "quantities", "fault", "condition")
LINES = "mxnet-1.9.1/fused-native", "mxnet-2.0.0b1/fused-native"


def write(folder, findings=(), verdicts=(), backends=()):
    """The tables of a run: findings as FINDING; verdicts as (case, backend, quantity, verdict)."""
    folder.mkdir()
    for name, columns, rows in (
        ("findings", FINDING, findings),
        ("summary", ("case", "backend", "quantity", "verdict"), verdicts),
        ("backends", ("backend", "state", "versions"), backends),
    ):
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    (folder / "run.json").write_text(json.dumps({"kind": "compare", "backends": {row[0]: {} for row in backends}}))
    return folder


def run(folder, backend, wrong, right=("y",), case="c", condition="", fault="recurrent-term-dropped"):
    """A run of one backend: a fault in some quantities, others agree."""
    return write(
        folder,
        [(case, backend, " ".join(wrong), fault, condition)] if wrong else [],
        [(case, backend, q, "disagrees") for q in wrong] + [(case, backend, q, "agrees") for q in right],
        [(backend, "ran", f"framework=mxnet version={backend.split('/')[0][6:]} numpy=1.23.5")],
    )


def summed(found):
    return [(c.change, c.backend, " ".join(c.quantities), *c.versions, *c.faults) for c in found.changes]


def test_findings_are_matched_across_versions_by_framework_and_variant(tmp_path):
    one = run(tmp_path / "1", LINES[0], ("dx",), ("y", "dh0"))
    other = run(tmp_path / "2", LINES[1], ("dh0",), ("y", "dx"))
    found = diff(one, other)
    assert summed(found) == [
        ("new", "mxnet/fused-native", "dh0", "1.9.1", "2.0.0b1", "agrees", "recurrent-term-dropped"),
        ("gone", "mxnet/fused-native", "dx", "1.9.1", "2.0.0b1", "recurrent-term-dropped", "agrees"),
    ]
    assert found.versions == ("mxnet: 1.9.1 -> 2.0.0b1",)
    assert diff(one, one).changes == ()


def test_the_same_finding_in_another_version_is_no_change(tmp_path):
    one, other = run(tmp_path / "1", LINES[0], ("dx",)), run(tmp_path / "2", LINES[1], ("dx",))
    assert diff(one, other).changes == ()


@pytest.mark.parametrize(
    "change", [{"fault": "truncated (after 2 steps)"}, {"condition": "in float32 but not in float64"}]
)
def test_another_fault_or_condition_is_different_and_not_new(tmp_path, change):
    one, other = run(tmp_path / "1", LINES[0], ("dx",)), run(tmp_path / "2", LINES[0], ("dx",), **change)
    found = diff(one, other)
    assert [c.change for c in found.changes] == ["different"]
    assert found.new == ()


def test_what_the_second_run_did_not_look_at_has_not_gone(tmp_path):
    one = run(tmp_path / "1", LINES[0], ("dx",))
    other = write(tmp_path / "2", [], [("c", LINES[0], "dx", "unavailable")], [(LINES[0], "unavailable", "")])
    assert summed(diff(one, other))[0][:3] == ("not run", "mxnet/fused-native", "dx")
    assert [c.change for c in diff(other, one).changes] == ["new"]


def test_a_new_crash_is_new_and_one_that_has_gone_is_gone(tmp_path):
    one = run(tmp_path / "1", LINES[0], (), ("y", "dx"))
    verdicts = [("c", LINES[0], "y", "crashed"), ("c", LINES[0], "dx", "timed out")]
    other = write(tmp_path / "2", [], verdicts, [(LINES[0], "ran", "")])
    assert [(c.change, c.faults[1]) for c in diff(one, other).changes] == [("new", "crashed"), ("new", "timed out")]
    assert {c.change for c in diff(other, one).changes} == {"gone"}


def test_two_versions_in_both_runs_stay_with_themselves_and_the_newest_meet(tmp_path):
    def several(folder, *lines):
        rows = [(f"mxnet-{line}/fused-native", "ran", "") for line in lines]
        return write(folder, [("c", rows[-1][0], "dx", "bias-missing", "")], [], rows)

    one, other = several(tmp_path / "1", "1.8.0", "1.9.1", "1.10.0"), several(tmp_path / "2", "1.8.0", "2.0.0", "2.1.0")
    assert [c.versions for c in diff(one, other).changes] == []
    assert "mxnet: 1.8.0" not in " ".join(diff(one, other).versions)
    fewer = several(tmp_path / "3", "1.8.0", "2.0.0")
    assert diff(one, fewer).versions == ("mxnet: 1.9.1 in the first run alone",)
    assert diff(one, fewer).changes == ()


def test_a_build_of_another_distribution_is_the_same_framework(tmp_path):
    one, other = (
        run(tmp_path / "1", "mxnet-native-1.8.0.post0/unrolled", ("dx",)),
        run(tmp_path / "2", "mxnet-1.9.1/unrolled", ()),
    )
    write(tmp_path / "3", [], [("c", "mxnet-1.9.1/unrolled", "dx", "agrees")], [("mxnet-1.9.1/unrolled", "ran", "")])
    assert summed(diff(one, tmp_path / "3")) == [
        ("gone", "mxnet/unrolled", "dx", "native-1.8.0.post0", "1.9.1", "recurrent-term-dropped", "agrees")
    ]
    assert [c.change for c in diff(one, other).changes] == ["not run"]


def test_a_sweeps_findings_need_neither_case_nor_summary(tmp_path):
    def sweep(folder, *faults):
        folder.mkdir()
        rows = [(n, LINES[0], "dx dh0", fault, "") for n, fault in enumerate(faults)]
        with open(folder / "findings.csv", "w", newline="") as file:
            csv.writer(file).writerows([("finding", "backend", "quantities", "fault", "condition"), *rows])
        (folder / "run.json").write_text(json.dumps({"kind": "sweep", "backends": {LINES[0]: {}}}))
        return folder

    one, other, none = sweep(tmp_path / "1", "a"), sweep(tmp_path / "2", "a", "b"), sweep(tmp_path / "3")
    assert [(c.change, c.quantities, c.faults) for c in diff(one, other).changes] == [
        ("new", ("dx", "dh0"), ("a", "a | b"))
    ]
    assert [c.change for c in diff(other, one).changes] == ["gone"]
    assert [c.change for c in diff(none, one).changes] == ["new"]
    assert [c.change for c in diff(one, none).changes] == ["gone"]


def test_real_runs_and_the_command(tmp_path):
    for name, function in (("right", right), ("wrong", forgetful)):
        backend = bridge.as_backend(function, "mine-1.0/numpy" if name == "right" else "mine-1.1/numpy")
        bridge.compare(CASE, [backend]).save(tmp_path / name)
    done = gradbridge("diff", tmp_path / "right", tmp_path / "wrong")
    assert done.returncode == 1
    assert "new: mine/numpy, flux-rnn-tanh, dx: 1.0 agrees -> 1.1 recurrent-term-dropped" in done.stdout
    assert "recurrent-term-dropped: the recurrent term is dropped" in done.stdout
    done = gradbridge("diff", tmp_path / "wrong", tmp_path / "right")
    assert done.returncode == 0
    assert re.search(r"^gone: .*recurrent-term-dropped -> 1.0 agrees$", done.stdout, re.MULTILINE)
    assert "no new, 1 other changes" in done.stdout


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda folder: (folder / "run.json").unlink(), "no run.json in it"),
        (lambda folder: (folder / "findings.csv").unlink(), "findings.csv: expected a readable file"),
        (lambda folder: (folder / "findings.csv").write_text(""), "findings.csv: expected a table"),
        (
            lambda folder: (folder / "findings.csv").write_text("a,b\n1,2\n"),
            "findings.csv: backend: expected that column",
        ),
        (lambda folder: (folder / "summary.csv").write_bytes(b"\xff\xfe\x00"), "summary.csv"),
    ],
)
def test_a_folder_without_a_runs_tables_is_one_line_and_exit_code_2(tmp_path, break_it, words):
    run(tmp_path / "1", LINES[0], ("dx",))
    break_it(tmp_path / "1")
    done = gradbridge("diff", tmp_path / "1", tmp_path / "1")
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
