"""A user's own implementation as a backend: a callable of this process, or an entry point in a worker."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from random_cases import random_case

import bridge
from bridge.answers import Task
from bridge.backends.callables import Served, as_backend


def right(case):
    """Everything, requested or not."""
    return bridge.reference.gradients(case)


def flat(case):
    return {k: v[0][0] if isinstance(v, tuple) else v for k, v in right(case).items()}


def lists(case):
    return {k: [[a.tolist() for a in row] for row in v] if isinstance(v, tuple) else v for k, v in right(case).items()}


def drawn(**more):
    sizes = {
        "mode": "lstm",
        "T": 4,
        "B": 2,
        "I": 2,
        "H": 3,
        "dtype": "float64",
        "requested": ("x", "params", "h0", "c0"),
    }
    return random_case(np.random.default_rng(0), **(sizes | {"layers": 1, "bidirectional": 0} | more))


def verdicts(case, function, **how):
    table = bridge.compare(case, [function], **how).summary.set_index("quantity")
    return dict(table["verdict"]), dict(table["reason"])


@pytest.mark.parametrize("function", [right, flat, lists])
def test_a_right_callable_agrees_in_every_form_its_arrays_may_have(function):
    found, _ = verdicts(drawn(), function)
    assert set(found.values()) == {"agrees"}
    assert len(found) == 8


@pytest.mark.parametrize("head", ["ones", "last", "given", "given+final"])
def test_stacked_bidirectional_cases_with_prefixes_and_loss_steps_come_as_cases_of_their_own(head):
    case = drawn(layers=2, bidirectional=1, head=head, seq_lens=(2, 4))
    seen = []

    def function(alone):
        seen.append(alone)
        return right(alone)

    found, _ = verdicts(case, function, loss_steps=True)
    assert set(found.values()) == {"agrees"}
    assert {alone.seq_len for alone in seen} == {2, 4}
    assert all(alone.seq_lens == (alone.seq_len,) for alone in seen)
    assert len(seen) == 2 * (1 + 2 + 1 + 4)  # twice each


@pytest.mark.parametrize("head", ["ones", "last", "given", "given+final"])
@pytest.mark.parametrize("loss_step", [None, 1])
def test_the_case_of_a_task_says_the_same_on_its_own(head, loss_step):
    task = Task(drawn(head=head), 3, loss_step)
    one, other = right(task.alone()), bridge.reference.gradients(task.case, 3, loss_step)
    for name in ("y", "dx", "dh0", "dc0"):
        np.testing.assert_array_equal(one[name], other[name])


def test_a_wrong_callable_disagrees_and_its_fault_is_named():
    def forgetful(case):
        steps = [bridge.reference.gradients(case, None, step)["dx"][step] for step in range(case.seq_len)]
        return right(case) | {"dx": np.stack(steps)}  # dL/dx_t without what flows through later states

    comparison = bridge.compare(drawn(mode="rnn_tanh", head="ones", requested=("x",)), [forgetful])
    assert dict(comparison.summary.set_index("quantity")["verdict"]) == {"y": "agrees", "dx": "disagrees"}
    (finding,) = comparison.findings
    assert (finding.backend, finding.match.fault) == ("callable/forgetful", "recurrent-term-dropped")


@pytest.mark.parametrize(
    ("returned", "quantity", "words"),
    [
        (None, "dx", "TypeError: the callable returned NoneType, not a dict of arrays"),
        ({"dX": 1}, "dx", "ValueError: the callable returned the unknown key 'dX'; known are y, dx, dweight_ih"),
        ({"dx": np.zeros((4, 2))}, "dx", "dx: shape (4, 2, 2) expected, found (4, 2)"),
        ({"dx": [[1, 2], [3]]}, "dx", "dx: setting an array element"),
        ({"dx": "text"}, "dx", "dx: real numbers expected, found str of dtype"),
        ({"dx": np.zeros((4, 2, 2), complex)}, "dx", "dx: real numbers expected, found ndarray of dtype complex128"),
        ({"dweight_hh": np.zeros((3, 3))}, "dweight_hh", "dweight_hh[0][0]: shape (12, 3) expected, found (3, 3)"),
        ({"dweight_hh": [[1, 2], [3]]}, "dweight_hh", "dweight_hh: setting an array element"),
        ({"dweight_hh": [[np.zeros((12, 3))] * 2]}, "dweight_hh", "[layer][direction] of arrays, 1 by 1, expected"),
        ({"dbias_ih": 3}, "dbias_ih", "dbias_ih: [layer][direction] of arrays, 1 by 1, expected, found int"),
    ],
)
def test_wrong_keys_and_shapes_are_a_crash_with_one_line(returned, quantity, words):
    found, reasons = verdicts(drawn(), lambda case: returned)
    assert found[quantity] == "crashed"
    assert words in reasons[quantity]
    assert "\n" not in reasons[quantity]


def test_one_wrong_quantity_leaves_the_others_and_a_missing_one_is_unsupported():
    def function(case):
        given = right(case)
        del given["dh0"]
        return given | {"dx": given["dx"][:, :1], "dc0": None}

    found, reasons = verdicts(drawn(), function)
    assert (found["dx"], found["dh0"], found["dc0"], found["dweight_ih"]) == (
        "crashed", "unsupported", "unsupported", "agrees",
    )  # fmt: skip
    assert reasons["dh0"] == "the callable gave no dh0"


def test_a_callable_that_raises_is_crashed_and_one_that_refuses_is_unsupported():
    def raises(case):
        raise RuntimeError("the first line\nand a second")

    def refuses(case):
        raise NotImplementedError("no LSTM")

    def also(case):
        raise bridge.UnsupportedError("not on a Monday")

    comparison = bridge.compare(drawn(), [raises, refuses, also, right])
    table = comparison.summary.groupby("backend", sort=False)[["verdict", "reason"]].first()
    assert table.loc["callable/raises"].tolist() == ["crashed", "RuntimeError: the first line"]
    assert table.loc["callable/refuses"].tolist() == ["unsupported", "no LSTM"]
    assert table.loc["callable/also"].tolist() == ["unsupported", "not on a Monday"]
    assert table.loc["callable/right", "verdict"] == "agrees"


def test_a_buffer_that_is_added_to_is_not_repeatable_even_if_it_is_the_same_object():
    buffer = np.zeros((4, 2, 2))

    def adding(case):
        buffer[:] += right(case)["dx"]
        return right(case) | {"dx": buffer}

    found, _ = verdicts(drawn(), adding)
    assert found["dx"] == "not repeatable"
    assert found["dweight_ih"] == "agrees"


def test_an_input_cannot_be_written_into():
    def writes(case):
        case.x[0] = 1

    found, reasons = verdicts(drawn(), writes)
    assert found["dx"] == "crashed"
    assert "read-only" in reasons["dx"]


def test_callables_of_one_name_are_told_apart_and_a_name_may_be_given():
    named = as_backend(right, "mine-1.0/numpy")
    comparison = bridge.compare(drawn(), [lambda c: right(c), lambda c: right(c), named])
    assert list(comparison.backends["backend"]) == ["callable/lambda", "callable/lambda-2", "mine-1.0/numpy"]
    assert set(comparison.pairs["verdict"]) == {"agrees"}


@pytest.mark.parametrize(("function", "name"), [(3, None), (right, "mine"), (right, "a/b/c"), (right, 3)])
def test_what_is_no_backend_is_refused(function, name):
    with pytest.raises(bridge.BadInputError, match=r"^backend"):
        as_backend(function, name)


def test_the_memory_is_disturbed_between_the_calls():
    events = []

    class Watched(Served):
        def disturb(self):
            events.append("disturbed")
            super().disturb()

    def function(case):
        events.append("called")
        return right(case)

    session = as_backend(function).open(None)
    session.served = Watched(function, {})
    session.ask(Task(drawn(), 4))
    assert events[-3:] == ["called", "disturbed", "called"]


def test_jacobian_and_relations_work_on_a_callable():
    case = drawn(mode="rnn_tanh", requested=("x", "h0"))
    comparison = bridge.compare(case, [right], jacobian=True, relations=True)
    assert len(comparison.maps) == 1
    assert not (comparison.relations["verdict"] == "violated").any()
    assert "holds" in set(comparison.relations["verdict"])


# -- entry points ------------------------------------------------------------------------------------------------

MODULE = """
    import os
    import bridge
    from bridge import reference

    def numpy(case):
        if case.mode == "rnn_identity":
            raise NotImplementedError("no identity")
        return reference.gradients(case)

    def dies(case):
        os._exit(7)

    number = 3
"""
POINTS = """
    [gradbridge.backends]
    numpy = mine_package:numpy
    dies = mine_package:dies
    gone = mine_package:gone
    absent = no_such_package:f
    number = mine_package:number
    whole = mine_package
    text = this is not a reference
"""


def install(folder, points, name="mine", version="1.0"):
    """Put a package where importlib.metadata finds it, as pip would."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(points))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_package.py").write_text(textwrap.dedent(MODULE))
    install(tmp_path, POINTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_entry_points_are_backends_in_workers_and_a_broken_one_is_unavailable_with_its_reason(mine):
    comparison = bridge.compare(["flux-1547", "flux-gru"], ["mine-1.0/*"])
    table = comparison.backends.set_index("backend")
    assert list(table.index) == [
        f"mine-1.0/{n}" for n in ("absent", "dies", "gone", "number", "numpy", "text", "whole")
    ]
    assert set(table["source"]) == {"live"}
    assert table.loc["mine-1.0/numpy", "versions"].startswith("framework=mine version=1.0 python=")
    for name, words in {
        "absent": "entry point 'no_such_package:f' of mine 1.0: ModuleNotFoundError: No module named 'no_such_package'",
        "gone": "AttributeError: module 'mine_package' has no attribute 'gone'",
        "number": "a callable expected, found int",
        "whole": "a callable expected, found module",
        "text": "module:callable expected",
    }.items():
        assert table.loc[f"mine-1.0/{name}", "state"] == "unavailable"
        assert words in table.loc[f"mine-1.0/{name}", "reason"]
    found = comparison.summary.groupby(["backend", "case"])["verdict"].unique()
    assert list(found["mine-1.0/numpy", "flux-gru"]) == ["agrees"]
    assert list(found["mine-1.0/numpy", "flux-1547"]) == ["unsupported"]
    assert list(found["mine-1.0/dies", "flux-gru"]) == ["crashed"]
    assert "mine_package" not in sys.modules


def test_the_command_finds_them(mine):
    done = subprocess.run(
        [sys.executable, "-m", "bridge", "compare", "flux-gru", "--backend", "mine-1.0/num*", "--out", mine / "out"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mine-1.0/numpy" in (mine / "out" / "summary.csv").read_text()


def test_unreadable_entry_points_do_not_end_the_run(mine):
    install(mine, "[gradbridge.backends]\nnot a pair\n", "broken", "2")
    comparison = bridge.compare("flux-gru", ["mine-1.0/numpy", "broken-2/*"])
    table = comparison.backends.set_index("backend")
    assert table.loc["mine-1.0/numpy", "state"] == "ran"
    assert table.loc["broken-2/unreadable", "state"] == "unavailable"
    assert "broken 2 cannot be read" in table.loc["broken-2/unreadable", "reason"]


def test_the_default_set_is_not_changed_by_what_is_installed(mine):
    from bridge.backends.registry import Sources, select

    families = {backend.name.partition("-")[0] for backend in select(None, Sources(live=False))}
    assert families == {"mxnet", "flux"}
