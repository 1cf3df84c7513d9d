"""What the docs say is so: examples run, columns are the tables', links lead somewhere, options exist."""

import json
import re
import shlex
from pathlib import Path

import click
import pytest
from test_known import read

import bridge
from bridge import assertion, investigation, jacobian, kinds, matrix, relations
from bridge.cli import main
from bridge.config import load_config
from bridge.faults import CATALOGUE
from bridge.limits import PAGE
from bridge.report import files, tables
from bridge.space import sample
from bridge.sweep import Sweep

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
NAMES = [page.name for page in PAGES]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


# -- examples ----------------------------------------------------------------------------------------------------


def test_the_backend_that_the_page_writes_agrees_and_its_assertion_passes():
    names = {}
    (example,) = blocks("writing-a-backend.md", "python")
    exec(example, names)
    assert set(names["comparison"].summary["verdict"]) == {"agrees"}
    for page, test in (("pytest.md", "test_my_kernel"), ("sweep.md", "test_my_rnn")):
        (example,) = blocks(page, "python")
        exec(example, names)
        names[test]()


def test_the_file_of_accepted_findings_is_one(tmp_path):
    (example,) = blocks("routine.md", "toml")
    assert [entry.fault for entry in read(tmp_path, example)] == ["recurrent-term-dropped", "unexplained"]


def test_the_configuration_is_one(tmp_path, monkeypatch):
    (example,) = blocks("flux.md", "toml")
    (tmp_path / "gradbridge.toml").write_text(example)
    monkeypatch.chdir(tmp_path)
    found = load_config()
    assert found["recordings"] == [str(tmp_path / "my/recordings")]
    assert [sorted(entry) for entry in found["flux"]] == [["env", "julia", "project", "python"]]


@pytest.mark.parametrize("number", [0, 1])
def test_the_case_files_of_the_page_are_cases(tmp_path, number):
    text = blocks("cases.md", "json")[number]
    (tmp_path / "case.json").write_text(text)
    assert bridge.load_case(tmp_path / "case.json").name == json.loads(text)["name"]


@pytest.mark.parametrize("needs", ["torch", "mxnet", None])
def test_the_cases_that_the_page_makes_are_saved(tmp_path, monkeypatch, needs):
    from_torch, from_gluon, by_hand = blocks("cases.md", "python")
    monkeypatch.chdir(tmp_path)
    if needs == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed")
        exec(from_torch, {})
    elif needs is None:
        exec(by_hand, {})
    else:  # MXNet leaves warnings and threads in the process that imports it
        import subprocess
        import sys

        subprocess.run([sys.executable, "-c", from_gluon], check=True, capture_output=True)
    (path,) = tmp_path.glob("mine*.json")
    assert bridge.load_case(path).mode == "lstm"


# -- columns -----------------------------------------------------------------------------------------------------


def written():
    """Every table that the code writes, with its columns."""
    nothing = Sweep([], [], {}, {})
    row = {
        "index": 0,
        "digest": "",
        "features": sample(0, 0).features,
        "results": {"a/b": {"verdict": "agrees", "reason": "", "symptoms": []}},
    }
    return {
        "gradients.csv": tables.GRADIENTS,
        "timesteps.csv": tables.TIMESTEPS,
        "summary.csv": tables.SUMMARY,
        "findings.csv of compare": tables.FINDINGS,
        "pairs.csv": tables.PAIRS,
        "backends.csv": tables.BACKENDS,
        "jacobian.csv": jacobian.COLUMNS,
        "relations.csv": relations.COLUMNS,
        "not_repeatable.csv": tables.not_repeatable([]).columns,
        "matrix.csv": matrix.FIXED,
        "flux.csv": investigation.COLUMNS,
        "findings.csv of sweep": nothing.findings.columns,
        "cases.csv": kinds.rows_for_table([row])[0],
    }


def test_every_table_is_described_and_no_other():
    described = re.findall(r"^## (.*\.csv.*)$", (DOCS / "columns.md").read_text(), re.MULTILINE)
    assert sorted(described) == sorted(written())
    names = {name.partition(".csv")[0] for name in written()}
    assert {*files.TABLES, *files.ONLY_WHERE_ANY} <= names


@pytest.mark.parametrize("name", written())
def test_the_columns_are_those_that_are_written(name):
    text = (DOCS / "columns.md").read_text()
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert re.findall(r"`([^`]+)`", " ".join(named)) == list(written()[name])


def test_the_pytest_csv_has_the_columns_that_its_page_says():
    assert list(assertion.COLUMNS) == ["test", "comparison", *tables.GRADIENTS, "fault", "reason"]


@pytest.mark.parametrize("run", ["seed", "mxnet-2.0.0b1"])
def test_run_json_holds_what_the_page_names(run):
    path = DOCS.parent / "results" / run / "run.json"
    if not path.exists():
        pytest.skip(f"no results/{run}/run.json in this checkout")
    section = (DOCS / "columns.md").read_text().partition("## run.json")[2]
    assert set(json.loads(path.read_text())) <= set(re.findall(r"`(\w+)`", section))


# -- names, links, options ---------------------------------------------------------------------------------------


def test_the_catalogue_of_faults_is_whole():
    listed = (DOCS / "faults.md").read_text().partition("## The catalogue")[2].partition("A sweep knows")[0]
    assert sorted(re.findall(r"`([\w-]+)`", listed)) == sorted(CATALOGUE)


def test_the_relations_are_all_described():
    listed = (DOCS / "faults.md").read_text().partition("## Relations")[2]
    assert [one.name for one in relations.RELATIONS if one.name not in listed] == []


def anchors(page):
    """The fragments that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if ":" in target:
            continue
        path, _, fragment = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        assert not fragment or fragment in anchors(there), target


def test_every_page_is_linked_from_the_readme():
    text = PAGES[0].read_text()
    assert [page.name for page in PAGES[1:] if f"(docs/{page.name})" not in text] == []


def options(command):
    """The options of a command and of what is below it."""
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union({"--help"}, *(options(one) for one in below))


def commands(text):
    """Every use of the command in a text, as words."""
    for line in re.findall(r"\bgradbridge ((?:[a-z]+)(?: [^`\n|]*)?)", text):
        try:
            yield shlex.split(line, comments=True)
        except ValueError:  # a sentence, not a command
            continue


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_have_the_options_that_they_are_shown_with(page):
    for words in commands("\n".join(re.findall(r"`[^`\n]+`|^    .*$", page.read_text(), re.MULTILINE))):
        command = main
        while isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        if command is not main:
            used = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert used <= options(command), words


FOREIGN = {"--project"}  # julia's
PLUGIN = {"--gradbridge-csv"}


def test_options_that_the_pages_name_exist_and_all_are_named():
    named = {name for page in PAGES for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text())}
    real = {name for name in options(main) if name.startswith("--")}
    assert named - real - PLUGIN - FOREIGN == set()
    assert real - named - {"--version", "--no-loss-steps"} == set()


def test_the_page_of_limits_exists_and_names_the_keys():
    text = (DOCS.parent / PAGE).read_text()
    assert all(key in text for key in ("dropout", "projection_size", "proj_size", "sequence_length", "device", "ctx"))
