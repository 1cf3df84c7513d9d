"""The statement that separates failing from passing cases is the planted one, or says how far it goes."""

import numpy as np
import pytest

from bridge.conditions import separate
from bridge.space import sample

FEATURES = [sample(0, index).features for index in range(400)]


@pytest.mark.parametrize(
    ("text", "test"),
    [
        ("layers >= 3", lambda f: f["layers"] >= 3),
        ("params not requested", lambda f: "params" not in f["requested"].split()),
        ("mode == rnn_relu and dtype == float64", lambda f: (f["mode"], f["dtype"]) == ("rnn_relu", "float64")),
        ("mode in (gru, lstm) and seq_len >= 5", lambda f: f["mode"] in ("gru", "lstm") and f["seq_len"] >= 5),
        ("bidirectional and h0 requested", lambda f: f["bidirectional"] and "h0" in f["requested"].split()),
        ("not all requested", lambda f: not f["all requested"]),
        ("grad_req == add", lambda f: f["grad_req"] == "add"),
        ("always", lambda f: True),
    ],
)
def test_a_planted_statement_is_found(text, test):
    failing, passing = [f for f in FEATURES if test(f)], [f for f in FEATURES if not test(f)]
    found = separate(failing, passing)
    assert set(found.text.split(" and ")) == set(text.split(" and "))
    assert (found.covered, found.failing) == (len(failing), len(failing))
    assert (found.inside, found.passing) == (0, len(passing))


def test_one_stray_case_does_not_hide_the_statement():
    failing = [f for f in FEATURES if f["layers"] >= 3]
    stray, *passing = [f for f in FEATURES if f["layers"] == 1]
    found = separate([*failing, stray], passing)
    assert found.text == "layers >= 3"
    assert (found.covered, found.failing, found.inside) == (len(failing), len(failing) + 1, 0)


def test_where_chance_decides_the_counts_say_so():
    rng = np.random.default_rng(0)
    chosen = rng.random(len(FEATURES)) < 0.5
    failing = [f for f, one in zip(FEATURES, chosen, strict=True) if one and f["layers"] > 1]
    passing = [f for f, one in zip(FEATURES, chosen, strict=True) if not one or f["layers"] == 1]
    found = separate(failing, passing)
    assert found.text == "layers >= 2"
    assert found.inside == sum(f["layers"] > 1 for f in passing) > 0
    assert found.separates.startswith(f"{len(failing)} of {len(failing)} failing, {found.inside} of")
