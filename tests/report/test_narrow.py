"""Tables where the terminal is too narrow for them: nothing is cut off, no line is longer than the terminal."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Table

from bridge.report.narrow import print_table


def printed(width, names=True):
    table = Table("t", box=None, pad_edge=False)
    table.add_column("L=1", justify="right", no_wrap=True)
    table.add_column("words", min_width=8)
    table.add_column("", no_wrap=True)
    table.add_row("0", "0.14385478", "one two three", "[bold red]WRONGLY SAME[/]")
    table.add_row("  1", "", "four", "")
    out = io.StringIO()
    print_table(table, Console(file=out, width=width, emoji=False, highlight=False), names)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_table_that_fits_is_a_table_and_its_words_may_wrap():
    assert printed(60) == [
        "t        L=1  words",
        "0    0.14385478  one two three  WRONGLY SAME",
        "  1              four",
    ] or printed(60)[0].split() == ["t", "L=1", "words"]
    assert len(printed(60)) == 3
    assert len(printed(39)) > 3
    assert printed(39)[0].split() == ["t", "L=1", "words"]


@pytest.mark.parametrize("width", [20, 30, 36])
def test_one_that_does_not_is_a_paragraph_per_row_and_nothing_is_lost(width):
    lines = printed(width)
    assert max(map(len, lines)) <= width
    assert lines[0] == "0"
    assert " ".join(" ".join(lines).split()) == "0 L=1: 0.14385478 words: one two three WRONGLY SAME 1 words: four"
    assert " ".join(" ".join(printed(width, names=False)).split()) == "0 0.14385478 one two three WRONGLY SAME 1 four"


def run(*args, **env):
    return subprocess.run(
        [sys.executable, "-m", "bridge", *map(str, args)],
        capture_output=True, text=True, timeout=120, check=True, env=os.environ | env,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("width", [40, 60])
def test_the_command_shows_every_verdict_in_a_narrow_terminal(width, tmp_path):
    backend = "flux-0.14.25/recur-broadcast-explicit"
    shown = run("compare", "flux-1547", "--no-live", "--out", tmp_path, "--backend", backend, COLUMNS=str(width))
    assert "…" not in shown
    words = " ".join(shown.split())
    for part in (
        "recur-broadcast-explicit dW_ih disagrees 0.0022, rel 0.00079 L=2",
        "y db_ih db_hh dh0 agrees",
        "dx disagrees",
    ):
        assert part in words


def test_no_color_is_respected(tmp_path):
    args = [
        "compare",
        "flux-1547",
        "--no-live",
        "--out",
        tmp_path,
        "--backend",
        "flux-0.14.25/recur-broadcast-explicit",
    ]
    colored = run(*args, FORCE_COLOR="1", TERM="xterm-256color", COLUMNS="100")
    assert "\x1b[1;31m" in colored  # bold red
    plain = run(*args, FORCE_COLOR="1", TERM="xterm-256color", COLUMNS="100", NO_COLOR="1")
    assert "\x1b[1;31m" not in plain
    assert "disagrees" in plain
    assert "\x1b" not in run(*args, COLUMNS="100")
