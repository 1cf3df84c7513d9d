"""A comparison in a notebook."""

import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from test_pytest_plugin import CASE, forgetful, right

import bridge
from bridge.report import notebook


class Table(HTMLParser):
    """The text of every cell, row by row, and every tag that was met."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def comparison():
    return bridge.compare([CASE.replace(seq_lens=(2, 5)), "flux-gru"], [right, forgetful], jacobian=True)


def test_html_is_the_table_of_verdicts_and_the_findings(comparison):
    table = Table(comparison._repr_html_().partition("<ul>")[0])
    assert table.rows[0] == ["case", "backend", "y", "dx", "dW_ih", "dW_hh", "db_ih", "db_hh", "dh0"]
    assert table.rows[2] == ["flux-rnn-tanh", "callable/forgetful", "agrees", "disagrees", "", "", "", "", ""]
    assert table.rows[3] == ["flux-gru", "callable/right", *["agrees"] * 7]
    assert "callable/forgetful, dx: the recurrent term is dropped" in comparison._repr_html_()
    assert len(comparison._repr_html_()) < 5000


def test_html_is_escaped():
    def raises(case):
        raise ValueError('<script>alert("1")</script>')

    case = CASE.replace(name="<script>&")
    found = Table(bridge.compare(case, [raises])._repr_html_())
    assert "script" not in found.tags
    assert found.rows[1][:3] == ["<script>&", "callable/raises", "crashed"]


def test_many_rows_are_cut_short_and_said(comparison, monkeypatch):
    monkeypatch.setattr(notebook, "MOST_ROWS", 1)
    text = comparison._repr_html_()
    assert "and 3 more rows" in text
    assert "and 1 more findings" in text


def test_timesteps_show_error_and_tolerance_on_a_logarithmic_scale(comparison):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install gradbridge[plot]")
    figure = comparison.plot_timesteps()
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines) == ["callable/right", "callable/forgetful", "tolerance"]
    expected = np.abs(forgetful(CASE)["dx"] - right(CASE)["dx"]).max(axis=(1, 2))
    drawn = lines["callable/forgetful"].get_ydata()
    np.testing.assert_allclose(drawn[:4], expected[:4])
    assert np.isnan(drawn[4])  # the last step is right, to the last bit
    assert (lines["tolerance"].get_ydata() > 0).all()
    assert (
        len(comparison.plot_timesteps("y", backend="callable/right", seq_len=2).axes[0].get_lines()[0].get_xdata()) == 2
    )
    assert "flux-gru" in comparison.plot_timesteps(case="flux-gru").axes[0].get_title()


def test_jacobian_maps_of_reference_backend_and_difference(comparison, tmp_path):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install gradbridge[plot]")
    figure = comparison.plot_jacobian(backend="callable/right")
    titles = [axes.get_title() for axes in figure.axes[:3]]
    assert titles == ["reference", "callable/right", "difference"]
    steps = [bridge.reference.gradients(CASE, None, s)["dx"] for s in range(5)]
    truth = np.array([[np.abs(dx[t]).max() for t in range(5)] for dx in steps])
    for axes, expected in zip(figure.axes[:2], (truth, truth), strict=True):
        drawn = axes.get_images()[0].get_array()
        np.testing.assert_allclose(drawn.filled(0), expected, atol=1e-12)
    assert figure.axes[2].get_images()[0].get_array().mask.all()
    wrong = comparison.plot_jacobian(backend="callable/forgetful").axes
    assert not wrong[1].get_images()[0].get_array().mask.diagonal().any()
    assert not wrong[2].get_images()[0].get_array().mask[np.tril_indices(5, -1)].all()
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000
    assert matplotlib.pyplot.get_fignums() == []


def test_what_there_is_not_is_said_in_one_line(comparison):
    for call, words in (
        (lambda: comparison.plot_timesteps("dh0"), "quantity: expected y or dx, found 'dh0'"),
        (lambda: comparison.plot_timesteps(case="none"), "case: expected one of flux-rnn-tanh, flux-gru, found 'none'"),
        (lambda: comparison.plot_timesteps(backend="none"), "backend: expected one of"),
        (lambda: comparison.plot_timesteps(seq_len=4), "seq_len: expected one of 2, 5, found 4"),
        (lambda: comparison.plot_jacobian(backend="none"), "expected one of flux-rnn-tanh by callable/right"),
        (lambda: bridge.compare(CASE, [right]).plot_jacobian(), "a comparison made with jacobian=True"),
    ):
        with pytest.raises(bridge.BadInputError, match=words):
            call()


def test_without_matplotlib_the_extra_is_named(comparison, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for call in (comparison.plot_timesteps, comparison.plot_jacobian):
        with pytest.raises(ImportError, match=r"pip install gradbridge\[plot\]"):
            call()


def test_a_comparison_prints_as_a_line(comparison):
    assert repr(comparison) == "<Comparison of 2 backends on flux-rnn-tanh, flux-gru>"
