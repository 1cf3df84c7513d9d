"""Accepted findings: what is new, what is accepted, what has gone."""

import re

import pytest
from test_cli import gradbridge
from test_pytest_plugin import CASE, forgetful, right

import bridge
from bridge.known import load_known, sort

DROPPED = '[[known]]\nfault = "recurrent-term-dropped"\ncomment = "reported"\n'


def read(folder, text):
    (folder / "known.toml").write_text(text)
    return load_known(folder / "known.toml")


def row(case="c", backend="mxnet-1.9.1/fused-native", quantities="dx dh0", fault="recurrent-term-dropped"):
    return {"case": case, "backend": backend, "quantities": quantities, "fault": fault}


LOOKED = [("c", "mxnet-1.9.1/fused-native", "dx"), ("c", "mxnet-1.9.1/fused-native", "dh0")]


@pytest.mark.parametrize(
    ("more", "accepted"),
    [
        ("", 2),
        ('backend = "mxnet-*/*-native"\ncase = "c*"', 2),
        ('backend = "mxnet-2*"', 0),
        ('case = "d"', 0),
        ('quantities = ["dx"]', 1),
    ],
)
def test_wildcards_and_quantities_say_what_an_entry_accepts(tmp_path, more, accepted):
    found = sort(read(tmp_path, DROPPED + more), [row()], LOOKED)
    assert (len(found.accepted), len(found.new)) == (accepted, 2 - accepted)


def test_an_entry_has_gone_only_where_the_run_looked(tmp_path):
    entries = read(tmp_path, DROPPED)
    assert sort(entries, [], LOOKED).gone == entries
    assert sort(entries, [], []).gone == ()
    elsewhere = read(tmp_path, DROPPED + 'backend = "flux-*"')
    assert sort(elsewhere, [], LOOKED).gone == ()
    assert sort(read(tmp_path, DROPPED + 'quantities = ["dc0"]'), [], LOOKED).gone == ()
    assert sort(entries, [row()], LOOKED).gone == ()


def test_a_name_stands_for_its_details_and_no_name_is_unexplained(tmp_path):
    halved = row(fault="bias-halved (bias_ih)")
    assert (
        len(sort(read(tmp_path, DROPPED.replace("recurrent-term-dropped", "bias-halved")), [halved], LOOKED).new) == 0
    )
    assert len(sort(read(tmp_path, DROPPED.replace("recurrent-term-dropped", "bias")), [halved], LOOKED).new) == 2
    unexplained = read(tmp_path, DROPPED.replace("recurrent-term-dropped", "unexplained"))
    assert len(sort(unexplained, [row(fault=float("nan")), row(fault="")], LOOKED).new) == 0


def test_a_sweeps_findings_have_no_case_and_fit_every_case_pattern(tmp_path):
    found = {"finding": "1", "backend": "mxnet-1.9.1/fused-native", "quantities": "dx", "condition": ""}
    entries = read(tmp_path, DROPPED + 'case = "mxnet-*"')
    assert len(sort(entries, [found | {"fault": "recurrent-term-dropped"}], []).accepted) == 1
    assert len(sort(entries, [found | {"fault": "bias-missing"}], []).new) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[known", "TOML"),
        ("", "required field `known`"),
        ('[[known]]\nfault = "a"\n', "known[0]: expected [[known]] entries"),
        (DROPPED + "why = 3", "unknown field `why`"),
        (DROPPED + "quantities = 'dx'", "known[0].quantities"),
        (DROPPED + "quantities = ['dz']", "known[0].quantities: expected names out of"),
        (DROPPED.replace("reported", " "), "known[0].comment: expected why it is accepted"),
    ],
)
def test_a_bad_file_is_one_line_that_names_the_place(tmp_path, text, words):
    with pytest.raises(bridge.BadInputError, match=re.escape(words)) as caught:
        read(tmp_path, text)
    assert "known.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(bridge.BadInputError, match="No such file"):
        load_known(tmp_path / "none.toml")


def test_a_comparison_sorts_its_own(tmp_path):
    entries = read(tmp_path, DROPPED)
    found = bridge.compare(CASE, [forgetful]).sort(entries)
    assert [tuple(one) for one in found.accepted] == [
        ("flux-rnn-tanh", "callable/forgetful", "dx", "recurrent-term-dropped")
    ]
    assert found.new == found.gone == ()
    assert bridge.compare(CASE, [right]).sort(entries).gone == entries
    assert len(bridge.compare(CASE, [forgetful]).sort(()).new) == 1


def test_the_command_fails_on_new_faults_only(tmp_path):
    args = ["compare", "flux-1547", "--no-live", "--backend", "flux-0.14.25/recur-broadcast-*", "--out", tmp_path / "o"]
    args += ["--fail-on-disagreement"]
    assert gradbridge(*args).returncode == 1
    known = tmp_path / "known.toml"
    known.write_text(
        "".join(
            DROPPED.replace("recurrent-term-dropped", fault)
            for fault in (
                "forward-order*",
                "counted-*",
                "unexplained",
                "nothing-returned",
                "bias-missing",
                "truncated*",
            )
        )
    )
    done = gradbridge(*args, "--known", known)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^known: \d+ accepted, 0 new", done.stdout, re.MULTILINE)
    assert "known, and gone from this run: bias-missing (reported): take it out" in done.stdout
    known.write_text(DROPPED.replace("recurrent-term-dropped", "bias-missing"))
    done = gradbridge(*args, "--known", known)
    assert done.returncode == 1
    assert re.search(r"^new: flux-0.14.25/recur-broadcast-\S+, dweight_ih on flux-1547: ", done.stdout, re.MULTILINE)
    done = gradbridge(*args[:-3], "--out", tmp_path / "untouched", "--known", tmp_path / "none.toml")
    assert (done.returncode, (tmp_path / "untouched").exists()) == (2, False)
