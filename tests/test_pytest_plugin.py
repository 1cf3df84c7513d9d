"""The pytest plugin, in pytest runs of its own."""

import importlib.metadata
import io
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import bridge
from bridge import assertion
from bridge.pytest_plugin import assert_gradients_agree

pytest_plugins = ["pytester"]

INSTALLED = any(point.value == "bridge.pytest_plugin" for point in importlib.metadata.entry_points(group="pytest11"))
USE = [] if INSTALLED else ["-p", "bridge.pytest_plugin"]

HELPERS = """
    import numpy as np
    import bridge
    from bridge import reference
    from bridge.pytest_plugin import assert_gradients_agree

    CASE = bridge.load_case("flux-rnn-tanh").replace(requested=("x",))

    def right(case):
        return reference.gradients(case)

    def forgetful(case):
        steps = [reference.gradients(case, None, step)["dx"][step] for step in range(case.seq_len)]
        return right(case) | {"dx": np.stack(steps)}
"""

CASE = bridge.load_case("flux-rnn-tanh").replace(requested=("x",))


def right(case):
    return bridge.reference.gradients(case)


def forgetful(case):
    """DL/dx as MXNet's native kernel gives it: nothing flows through later states."""
    steps = [bridge.reference.gradients(case, None, step)["dx"][step] for step in range(case.seq_len)]
    return right(case) | {"dx": np.stack(steps)}


@pytest.fixture
def run(pytester):
    def run(tests, *args):
        pytester.makepyfile(helpers=HELPERS)
        pytester.makepyfile(test_it="from helpers import *\n" + "\n".join(tests))
        return pytester.runpytest_subprocess(*USE, "-p", "no:cacheprovider", *args)

    return run


# -- the assertion -----------------------------------------------------------------------------------------------


def test_a_right_callable_passes_and_the_comparison_comes_back():
    comparison = assert_gradients_agree("flux-rnn-tanh", right)
    assert set(comparison.summary["verdict"]) == {"agrees"}


def test_a_wrong_one_fails_with_the_first_ten_elements_and_the_name_of_the_fault():
    with pytest.raises(AssertionError) as caught:
        assert_gradients_agree(CASE, forgetful)
    text = str(caught.value)
    case = bridge.load_case("flux-rnn-tanh")
    (table,) = re.findall(
        r"    quantity +seq_len +timestep +batch +row +value +reference +tolerance\n(?:    +dx .*\n)+", text
    )
    rows = [line.split() for line in table.splitlines()[1:]]
    assert len(rows) == 10
    truth, values = right(case)["dx"], forgetful(case)["dx"]
    for name, length, *place, value, reference, tolerance in rows:
        at = tuple(map(int, place))
        assert (name, int(length)) == ("dx", case.seq_len)
        assert float(value) == pytest.approx(values[at], rel=1e-8)
        assert float(reference) == pytest.approx(truth[at], rel=1e-8)
        assert 0 < float(tolerance) < abs(values[at] - truth[at])
    wrong = int((np.abs(values - truth) > 1e-9).sum())
    assert f"... and {wrong - 10} more" in text
    assert f"dx disagrees, {wrong} of {truth.size} elements: differs by more than rounding in float64 explains" in text
    assert "fault: recurrent-term-dropped" in text


def test_quantities_narrow_what_must_agree():
    assert_gradients_agree(CASE, forgetful, quantities=["y"])
    with pytest.raises(AssertionError, match="dx disagrees"):
        assert_gradients_agree(CASE, forgetful, quantities=["dx"])


def test_a_quantity_without_a_value_fails_unless_it_is_left_out():
    def partly(case):
        return {name: value for name, value in right(case).items() if name in ("y", "dx")}

    assert_gradients_agree("flux-rnn-tanh", partly, quantities=["dx"])
    with pytest.raises(AssertionError, match="dh0 unsupported: the callable gave no dh0"):
        assert_gradients_agree("flux-rnn-tanh", partly)


def test_what_raises_fails_with_its_first_line():
    def raises(case):
        raise RuntimeError("broken\nin two")

    with pytest.raises(AssertionError, match="dx crashed: RuntimeError: broken\n"):
        assert_gradients_agree("flux-rnn-tanh", raises)


def test_two_values_of_what_is_not_repeatable_are_shown():
    calls = []

    def unsteady(case):
        calls.append(case)
        return right(case) | {"dx": right(case)["dx"] * len(calls)}

    with pytest.raises(AssertionError, match=r"-?[\d.e-]+ \| -?[\d.e-]+ "):
        assert_gradients_agree("flux-rnn-tanh", unsteady)


def test_a_callable_is_asked_for_the_very_case_alone():
    seen = []

    def watching(case):
        seen.append(case.digest())
        return forgetful(case)

    with pytest.raises(AssertionError):
        assert_gradients_agree(CASE, watching)
    assert set(seen) == {CASE.digest()}
    assert len(seen) == 2


def test_a_known_fault_is_accepted_and_one_that_has_gone_fails():
    assert_gradients_agree(CASE, forgetful, known_faults=["recurrent-term-dropped"])
    with pytest.raises(AssertionError, match="known fault recurrent-term-dropped not seen in callable/right any more"):
        assert_gradients_agree(CASE, right, known_faults=["recurrent-term-dropped"])
    with pytest.raises(AssertionError, match="known fault bias-doubled not seen") as caught:
        assert_gradients_agree(CASE, forgetful, known_faults=["recurrent-term-dropped", "bias-doubled"])
    assert "dx disagrees" not in str(caught.value)


def test_another_fault_than_the_known_one_fails_with_both():
    with pytest.raises(AssertionError, match=r"(?s)fault: recurrent-term-dropped.*known fault bias-doubled not seen"):
        assert_gradients_agree(CASE, forgetful, known_faults=["bias-doubled"])


def test_a_known_name_may_leave_out_the_detail():
    def doubled(case):
        given = right(case)
        return given | {"dbias_ih": [[2 * array for array in row] for row in given["dbias_ih"]]}

    comparison = assert_gradients_agree("flux-rnn-tanh", doubled, known_faults=["bias-doubled"])
    (finding,) = comparison.findings
    assert finding.match.fault == "bias-doubled (bias_ih)"
    assert_gradients_agree("flux-rnn-tanh", doubled, known_faults=[finding.match.fault])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"quantities": ["dz"]}, "quantities: expected names out of y, dx"),
        ({"quantities": "dx"}, "quantities: expected several names"),
        ({"quantities": []}, "quantities: expected at least one of"),
        ({"known_faults": ["recurrent-term-droped"]}, "known_faults: expected names that `gradbridge faults` lists"),
        ({"known_faults": "bias-doubled"}, "known_faults: expected several names"),
        ({"backend": "no-such-backend"}, "no-such-backend"),
        ({"case": "no-such-case"}, "no-such-case"),
    ],
)
def test_names_that_there_are_not_are_bad_input(arguments, words):
    with pytest.raises(bridge.BadInputError, match=re.escape(words)):
        assert_gradients_agree(**({"case": "flux-rnn-tanh", "backend": right} | arguments))


# -- in pytest ---------------------------------------------------------------------------------------------------


def test_the_fixture_and_the_function_work_and_a_failure_points_at_the_test(run):
    result = run([
        "def test_right(gradbridge): gradbridge.assert_gradients_agree(CASE, right)",
        "def test_wrong(gradbridge): gradbridge.assert_gradients_agree(CASE, forgetful)",
        "def test_known(): assert_gradients_agree(CASE, forgetful, known_faults=['recurrent-term-dropped'])",
        "def test_compare(gradbridge): assert gradbridge.compare(CASE, [forgetful]).disagreements == 1",
    ])  # fmt: skip
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["E*fault: recurrent-term-dropped*"])
    result.stdout.no_fnmatch_line("*bridge/assertion.py*")
    result.stdout.no_fnmatch_line("*bridge/pytest_plugin.py:*")


TESTS = [
    "import pytest",
    "@pytest.fixture(scope='module')\ndef before(gradbridge): return gradbridge.compare('flux-gru', [right])",
    "def test_wrong(gradbridge, before): gradbridge.assert_gradients_agree(CASE, forgetful)",
    "def test_two(gradbridge):\n    gradbridge.compare(CASE, [right]); assert_gradients_agree(CASE, right)",
    "def test_nothing(): pass",
    "def test_crash(gradbridge):\n    def raises(case): raise ValueError('no')\n    gradbridge.compare(CASE, [raises])",
]


def test_the_csv_holds_every_comparison_and_is_the_same_under_xdist(run, pytester):
    result = run(TESTS, "--gradbridge-csv", "out/all.csv")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["gradbridge: *out/all.csv"])
    alone = (pytester.path / "out" / "all.csv").read_bytes()
    table = pd.read_csv(io.BytesIO(alone))
    assert list(table.columns) == list(assertion.COLUMNS)
    counts = table.groupby(["test", "comparison", "case"]).size()
    crashed = table[table["test"] == "test_it.py::test_crash"]
    assert set(crashed["verdict"]) == {"crashed"}
    assert set(crashed["reason"]) == {"ValueError: no"}
    assert list(crashed["quantity"]) == ["y", "dx"]
    assert counts["test_it.py::test_two", 0, "flux-rnn-tanh"] == counts["test_it.py::test_two", 1, "flux-rnn-tanh"]
    assert counts["test_it.py::test_two", 0, "flux-rnn-tanh"] == 5 * 2 * 3 + 5 * 2 * 2  # y and dx
    assert ("test_it.py::test_wrong", 0, "flux-gru") in counts
    wrong = table[(table["case"] == "flux-rnn-tanh") & (table["verdict"] == "disagrees")]
    assert set(wrong["test"]) == {"test_it.py::test_wrong"}
    assert set(wrong["fault"]) == {"recurrent-term-dropped"}
    assert not list(pytester.path.glob("out/.*"))

    run(TESTS, "--gradbridge-csv", "out/two.csv", "-n", "2", "--dist", "loadfile").assert_outcomes(passed=3, failed=1)
    assert (pytester.path / "out" / "two.csv").read_bytes() == alone


def test_a_path_that_cannot_be_written_is_one_line_before_any_test(run, pytester):
    for path, words in (
        ("/proc/nowhere/a.csv", "can be written"),
        (str(pytester.path), "expected a file, found a folder"),
    ):
        result = run(["def test_a(): assert 0"], "--gradbridge-csv", path)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert words in result.stderr.str()
        assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_a_disk_that_is_full_at_the_end_is_said_and_fails_the_run(run, pytester):
    result = run(
        ["def test_a(gradbridge): gradbridge.compare(CASE, [right]); import os; os.mkdir('all.csv')"],
        "--gradbridge-csv", "all.csv",
    )  # fmt: skip
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["gradbridge: *all.csv cannot be written: *"])


def test_without_the_option_nothing_is_written_and_nothing_is_imported(run, pytester):
    result = run(["def test_a(gradbridge): gradbridge.compare(CASE, [right])"])
    result.assert_outcomes(passed=1)
    assert not list(pytester.path.glob("**/*.csv"))
    script = "import sys, bridge.pytest_plugin; print([m for m in sys.modules if m.startswith(('bridge.', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['bridge.pytest_plugin']"


def test_pytest_finds_it_by_its_entry_point(pytester):
    if not INSTALLED:
        pytest.skip("gradbridge is not installed here, its entry point cannot be seen: pip install .")
    result = pytester.runpytest_subprocess("--help")
    result.stdout.fnmatch_lines(["gradbridge:*", "*--gradbridge-csv=PATH*"])
