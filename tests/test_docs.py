"""The examples in the docs run."""

import re
from pathlib import Path

import pytest
from test_known import read

from bridge.limits import PAGE

DOCS = Path(__file__).parent.parent / "docs"


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def test_the_backend_that_the_page_writes_agrees_and_its_assertion_passes():
    names = {}
    (example,) = blocks("writing-a-backend.md", "python")
    exec(example, names)
    assert set(names["comparison"].summary["verdict"]) == {"agrees"}
    (test,) = blocks("pytest.md", "python")
    exec(test, names)
    names["test_my_kernel"]()


def test_the_file_of_accepted_findings_is_one(tmp_path):
    (example,) = blocks("routine.md", "toml")
    assert [entry.fault for entry in read(tmp_path, example)] == ["recurrent-term-dropped", "unexplained"]


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (DOCS / page).read_text()):
        assert (DOCS / target).exists(), target


def test_the_page_of_limits_exists_and_names_the_keys():
    text = (DOCS.parent / PAGE).read_text()
    assert all(key in text for key in ("dropout", "projection_size", "proj_size", "sequence_length", "device", "ctx"))
