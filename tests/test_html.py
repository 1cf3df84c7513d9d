"""report.html: structure, escaping, what it says, size; and, where there is a Chromium, how it behaves in a browser."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import big_run
import justhtml
import pandas as pd
import pytest
from click.testing import CliRunner
from test_workers import HERE

import bridge
from bridge.backends.base import LiveBackend
from bridge.backends.registry import Sources
from bridge.cli import main
from bridge.errors import BadInputError
from bridge.report import html, terminal
from bridge.report.lengths import by_length
from bridge.report.sentences import statements
from bridge.workers import Launch

HOSTILE = "<script>document.title='owned'<"
BACKEND = "doubling-1/<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run whose case, source and backend are named like markup; dx is twice what it should be."""
    case = bridge.load_case("flux-rnn-tanh").replace(
        name=HOSTILE, source="</script><b>bold</b>", seq_lens=(2, 3), requested=("x", "params")
    )
    backend = LiveBackend(BACKEND, "", Launch("doubling_backend", path=(HERE,)))
    folder = tmp_path_factory.mktemp("hostile")
    comparison = bridge.compare(case, [backend], jacobian=True, relations=True)
    comparison.save(folder)
    return folder, comparison


@pytest.fixture(scope="module")
def investigated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flux")
    result = CliRunner().invoke(main, ["flux", "flux-1547", "--no-live", "--out", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


def page(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


LIBRARY = (Path(html.__file__).parent / "vega.min.js").read_text(encoding="utf-8")


def parsed(folder):
    """The page as a document; the library is left out, since justhtml takes a "</g" in a script for a stray end tag."""
    return justhtml.JustHTML(page(folder).replace(LIBRARY, ""), strict=True, sanitize=False)


def text(node):
    return " ".join(node.to_text().split())


def embedded(document):
    (node,) = document.query("script#data")
    return json.loads(node.to_text(separator=""))


# -- structure, without a browser --------------------------------------------------------------------------------


def test_it_is_valid_html_that_loads_nothing(hostile, investigated):
    for folder in (hostile[0], investigated):
        document = parsed(folder)
        for name in ("src", "srcset", "data", "action", "poster"):
            assert not document.query(f"[{name}]"), name
        assert not document.query("link, iframe, object, embed, base, img")
        assert all(node.attrs["href"].startswith("#") for node in document.query("[href]"))
        assert "url(" not in page(folder).partition("</style>")[0]
        assert "@import" not in page(folder).partition("</style>")[0]


def test_every_link_has_a_target_and_no_id_is_there_twice(hostile, investigated):
    for folder in (hostile[0], investigated):
        document = parsed(folder)
        ids = [node.attrs["id"] for node in document.query("[id]")]
        assert len(ids) == len(set(ids))
        targets = {node.attrs["href"].removeprefix("#") for node in document.query("a[href]")}
        targets |= {node.attrs["data-copy"] for node in document.query("[data-copy]")}
        assert targets <= set(ids)


def test_names_that_look_like_markup_are_text(hostile):
    folder, _ = hostile
    document = parsed(folder)
    assert len(document.query("script")) == 3
    assert not document.query("b")
    assert HOSTILE in text(document.query("#verdicts")[0])
    assert BACKEND in text(document.query("#verdicts")[0])
    assert "</script><b>bold</b>" in text(document.query("#verdicts")[0])
    data = embedded(document)
    assert {figure["case"] for figure in data["steps"]} == {HOSTILE}
    assert {figure["case"] for figure in data["maps"]} == {HOSTILE}
    raw = page(folder).partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in raw


def test_the_chart_library_is_embedded_where_there_are_charts(hostile):
    assert "vegaEmbed=" in LIBRARY
    assert f"<script>{LIBRARY}</script>" in page(hostile[0])


# -- what it says ------------------------------------------------------------------------------------------------


def test_the_matrix_holds_every_verdict_of_the_summary(hostile):
    _, comparison = hostile
    document = parsed(hostile[0])
    cells = [text(cell) for cell in document.query("#verdicts tbody td")]
    summary = comparison.summary
    assert len(cells) == len(summary)
    for cell, verdict in zip(cells, summary["verdict"], strict=True):
        assert verdict in cell
    assert summary["verdict"].tolist().count("disagrees") == sum("✗ disagrees" in cell for cell in cells) == 1


def test_findings_are_the_terminals_sentences(investigated, capsys):
    rows = pd.read_csv(investigated / "findings.csv", keep_default_na=False)
    rows["steps"] = pd.to_numeric(rows["steps"])
    said = statements(rows)
    items = parsed(investigated).query(".statements > li")
    assert len(items) == len(said) > 3
    for item, one in zip(items, said, strict=True):
        assert one.clause in text(item)
        assert one.evidence in text(item)
    comparison = bridge.compare("flux-1547", ["flux-*"], sources=Sources(live=False))
    terminal.print_findings(comparison, terminal.console())
    printed = capsys.readouterr().out
    assert all(f"{one.clause} ({one.evidence})" in printed for one in said)


def test_a_finding_says_what_its_variants_are(investigated):
    findings = parsed(investigated).query("#findings")[0]
    assert "recur-broadcast-implicit : Flux.Recur(cell) by m.(xs), gradient(() -> ..., params)" in text(findings)


def test_a_cell_refers_to_the_finding_that_names_it(investigated):
    document = parsed(investigated)
    rows = pd.read_csv(investigated / "findings.csv")
    said = [text(item) for item in document.query(".statements > li")]
    clauses = {(row.backend, name): row.clause for row in rows.itertuples() for name in row.quantities.split()}
    short = {"dx": "dx", "dW_ih": "dweight_ih", "dW_hh": "dweight_hh", "db_ih": "dbias_ih", "db_hh": "dbias_hh"}
    names = [text(cell).split(" ")[0] for cell in document.query("#verdicts thead th")]
    seen = 0
    for row in document.query("#verdicts tbody tr"):
        who = text(row.query("th")[0])
        for name, cell in zip(names[1:], row.query("td"), strict=True):
            for link in cell.query("a"):
                number = int(link.attrs["href"].removeprefix("#finding-"))
                backends = {backend for backend, _ in clauses if backend == who}
                for backend in backends:
                    assert clauses[backend, short.get(name, name)] in said[number - 1]
                    seen += 1
    assert seen > 3


def test_the_flux_matrix_holds_the_seed_questions_numbers(investigated):
    document = parsed(investigated)
    rows = {text(row).partition(" ✓")[0].partition(" ✗")[0]: text(row) for row in document.query("#flux tbody tr")}
    assert "✗ wrong: 2.8025 +2" in next(line for line in rows.values() if line.startswith("recur broadcast explicit"))
    assert "truth: dL/dW_ih = 2.8003" in text(document.query("#flux")[0])
    assert "Right in every version here" in text(document.query("#flux .advice")[0])


def test_steps_carry_error_tolerance_and_values(hostile):
    folder, comparison = hostile
    data = embedded(parsed(folder))
    figure = data["steps"][0]
    assert (figure["quantity"], figure["length"], figure["loss"]) == ("dx", 3, None)
    (series,) = figure["series"]
    assert series["verdict"] == "disagrees"
    assert series["backends"] == [BACKEND]
    rows = comparison.gradients
    rows = rows[(rows["quantity"] == "dx") & (rows["seq_len"] == 3)]
    rows = rows.assign(part=rows["abs_err"] / rows["tolerance"])
    worst = rows.loc[rows.groupby("timestep")["part"].idxmax()]
    assert figure["numbers"][series["error"]] == pytest.approx(worst["abs_err"].tolist(), rel=1e-2)
    assert figure["numbers"][series["tolerance"]] == pytest.approx(worst["tolerance"].tolist(), rel=1e-2)
    values = figure["numbers"][series["values"][0]]
    truth = figure["numbers"][series["reference"][0]]
    assert values == pytest.approx([2 * value for value in truth], rel=1e-9)


def test_maps_carry_sizes_and_marks(hostile):
    (figure,) = embedded(parsed(hostile[0]))["maps"]
    (series,) = figure["series"]
    assert series["marks"] == "X..XX.XXX"
    value, reference = (figure["numbers"][series[name]] for name in ("value", "reference"))
    assert value == pytest.approx([2 * size for size in reference], rel=1e-5)
    assert [size == 0 for size in reference] == [mark == "." for mark in series["marks"]]


def lengths_rows(values):
    rows = [
        ("made-1/up", "dx", length, None, t, 0, 0, value, 1.0 + length - t, 0.1)
        for length, row in values.items()
        for t, value in enumerate(row)
    ]
    names = "backend quantity seq_len loss_step timestep batch row value reference tolerance"
    return pd.DataFrame(rows, columns=names.split())


def test_a_position_that_wrongly_stays_the_same_is_told_from_one_that_changes():
    (wrong,) = by_length(lengths_rows({1: [2.0], 2: [2.1, 2.0], 3: [2.0, 2.0, 2.0]}))
    assert wrong.growth == ("wrongly same", "wrongly same", "")
    (right,) = by_length(lengths_rows({1: [2.0], 2: [3.0, 2.0], 3: [4.0, 3.0, 2.0]}))
    assert right.growth == ("changes", "changes", "")
    assert right.right
    assert not wrong.right
    assert by_length(lengths_rows({3: [4.0, 3.0, 2.0]})) == []


# -- made anew, refused, large -----------------------------------------------------------------------------------


def test_report_makes_the_same_page_from_the_tables_alone(hostile, tmp_path):
    folder, _ = hostile
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "report.html").unlink()
    result = CliRunner().invoke(main, ["report", str(copy)])
    assert result.exit_code == 0, result.output
    assert page(copy) == page(folder)


def test_the_command_as_typed_is_in_the_manifest_and_on_the_page(investigated):
    manifest = json.loads((investigated / "run.json").read_text())
    assert manifest["kind"] == "flux"
    assert manifest["command"] == ["gradbridge", "flux", "flux-1547", "--no-live", "--out", str(investigated)]
    assert text(parsed(investigated).query("#command")[0]).startswith("gradbridge flux flux-1547 --no-live --out")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("run.json", lambda _: None, "no run.json in it"),
        ("run.json", lambda _: "{", "run.json"),
        ("run.json", lambda _: '{"kind": "dance"}', "kind"),
        ("run.json", lambda _: '{"kind": "compare", "cases": [3]}', "cases"),
        ("summary.csv", lambda _: None, "summary.csv"),
        ("summary.csv", lambda _: "", "summary.csv"),
        ("summary.csv", lambda old: old.replace("disagrees", "dances"), "summary.csv: verdict: expected one of agrees"),
        ("gradients.csv", lambda old: old.replace("tolerance", "slack"), "gradients.csv: tolerance: expected that col"),
        ("gradients.csv", lambda old: old.replace("0.", "zero.", 1), "gradients.csv: "),
        ("gradients.csv", lambda old: old.replace(",dx,3,", ",dx,-3,", 1), "gradients.csv: seq_len: expected whole"),
        ("timesteps.csv", lambda old: old + 'a,"b', "timesteps.csv"),
        ("jacobian.csv", lambda old: old.replace("agrees", "nods"), "jacobian.csv: verdict"),
        ("findings.csv", lambda old: old.replace("clause", "claws"), "findings.csv: clause"),
    ],
)
def test_a_broken_folder_is_one_line_that_names_the_file(hostile, tmp_path, name, change, words):
    folder = shutil.copytree(hostile[0], tmp_path / "copy")
    (folder / "report.html").write_text("as it was")
    changed = change((folder / name).read_text())
    (folder / name).unlink()
    if changed is not None:
        (folder / name).write_text(changed)
    result = CliRunner().invoke(main, ["report", str(folder)])
    assert result.exit_code == 2
    (line,) = result.output.strip().splitlines()
    assert words in line
    assert page(folder) == "as it was"
    with pytest.raises(BadInputError):
        html.write(folder)


def test_a_source_tree_without_the_chart_library_says_how_to_get_it(hostile, tmp_path, monkeypatch):
    monkeypatch.setattr("bridge.report.html.page.LIBRARY", "absent.min.js")
    folder = shutil.copytree(hostile[0], tmp_path / "copy")
    with pytest.raises(BadInputError, match=r"absent\.min\.js: expected the chart library, which `pip install \.`"):
        html.write(folder)


def test_a_case_called_na_keeps_its_name(hostile, tmp_path):
    folder = shutil.copytree(hostile[0], tmp_path / "copy")
    for path in folder.glob("*.csv"):
        path.write_text(path.read_text().replace(HOSTILE, "NA"))
    html.write(folder)
    assert {figure["case"] for figure in embedded(parsed(folder))["steps"]} == {"NA"}


def test_a_hundred_cases_through_six_backends_stay_below_five_megabytes(tmp_path):
    folder = big_run.write(tmp_path / "run", cases=100, backends=6, steps=20)
    assert html.write(folder).stat().st_size < 5e6
    data = json.loads(page(folder).partition('id="data">')[2].partition("</script>")[0])
    assert {figure["case"] for figure in data["steps"] if figure["quantity"] == "dx"} >= {
        f"case-{number}" for number in range(0, 100, 6)
    }


def test_what_is_left_out_is_said_and_what_disagrees_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("bridge.report.html.charts.STEPS_BYTES", 20_000)
    monkeypatch.setattr("bridge.report.html.charts.MAPS_BYTES", 20_000)
    folder = big_run.write(tmp_path / "run", cases=8, backends=6, steps=8)
    html.write(folder)
    document = parsed(folder)
    data = embedded(document)
    assert [figure["case"] for figure in data["steps"]][:2] == ["case-0", "case-6"]
    left_out = 16 - len(data["steps"])
    assert f"{left_out} further charts are left out" in text(document.query("#steps")[0])


def test_a_matrix_of_versions_is_shown(hostile, tmp_path):
    folder = shutil.copytree(hostile[0], tmp_path / "copy")
    row = {"fault": "dropped", "backend": "mxnet/fused-native", "cases": "a", "since": "mxnet-1", "until": "mxnet-2"}
    pd.DataFrame(row | {"mxnet-1": "shows", "mxnet-2": "does not show"}, index=[0]).to_csv(
        folder / "matrix.csv", index=False
    )
    html.write(folder)
    cells = [text(cell) for cell in parsed(folder).query("#versions tbody td")]
    assert cells[-2:] == ["✗ shows", "✓ does not show"]


def test_an_empty_run_has_a_page(tmp_path):
    folder = big_run.write(tmp_path / "run", cases=1, backends=4, steps=2)
    for path in folder.glob("*.csv"):
        path.write_text(path.read_text().splitlines()[0] + "\n")
    html.write(folder)
    assert "Nothing disagrees" in text(parsed(folder).query("#findings")[0])


def test_a_sweeps_findings_come_with_their_scripts(tmp_path):
    rows = {
        "finding": ["f1", "f2"], "backend": ["mxnet-2.0.0b1/fused-native", "flux-0.14.25/recur"], "quantities": "dx",
        "fault": "recurrent-term-dropped", "condition": "", "n_cases": [7, 1], "min_case": ["small", "<i>"],
        "worst_rel_err": [0.5, float("nan")], "verdict": "disagrees", "sentence": ["the first", "the <b>second</b>"],
    }  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "findings.csv", index=False)
    runs = {"case": [0, 1, 1], "backend": ["<u>", "<u>", "b"], "verdict": ["agrees", "disagrees", "agrees"]}
    pd.DataFrame(runs).to_csv(tmp_path / "cases.csv", index=False)
    (tmp_path / "run.json").write_text('{"kind": "sweep", "cases": 2, "backends": ["<u>", "b"], "seed": 1}')
    (tmp_path / "reproducers").mkdir()
    script = "print('</script><script>alert(1)</script>')\n"
    (tmp_path / "reproducers" / "f1.py").write_text(script)
    (tmp_path / "reproducers" / "f2.jl").write_text("println(1)\n")
    html.write(tmp_path)
    document = parsed(tmp_path)
    assert [text(row.query("td")[0]) for row in document.query("#findings tbody tr")] == ["1", "2"]
    assert [text(row) for row in document.query("#runs tbody tr")] == ["<u> 1 1", "b 1 0"]
    assert "the <b>second</b>" in text(document.query("#findings")[0])
    codes = document.query("#findings pre")
    assert [code.to_text(separator="", strip=False).strip() for code in codes] == [script.strip(), "println(1)"]
    assert len(document.query("#findings button.copy")) == 2
    assert len(document.query("script")) == 2


# -- in a browser ------------------------------------------------------------------------------------------------


def chromium():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install .[browser]"
    )
    if chromium() is None:
        pytest.skip("no Chromium is installed (on Debian: apt install chromium)")
    with playwright.sync_playwright() as api:
        started = api.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser):
    """Open a page, draw every chart, and see to it that nothing was complained about and nothing fetched."""
    complaints, requests, contexts = [], [], []

    def go(folder, **how):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | how))
        contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.on("request", lambda request: requests.append(request.url))
        opened.goto((folder / "report.html").resolve().as_uri())
        opened.wait_for_function("document.documentElement.dataset.drawn === 'all'")
        return opened

    yield go
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url.partition(":")[0] for url in requests} <= {"file", "data", "blob"}


def test_every_chart_is_drawn(visit, hostile, investigated):
    for folder in (hostile[0], investigated):
        opened = visit(folder)
        charts = opened.locator(".chart")
        assert charts.count() > 0
        assert opened.locator(".chart svg.marks").count() == charts.count()
        assert opened.get_by_text("could not be drawn").count() == 0
        assert opened.title().startswith("gradbridge")


def test_tables_sort_by_mouse_and_keyboard(visit, investigated):
    opened = visit(investigated)
    table = opened.locator("#verdicts table").first
    opened.locator("#verdicts details.case").first.evaluate("node => { node.open = true }")
    column = "cells => cells.map(cell => Number(cell.dataset.sort))"
    header = table.locator("thead th").nth(3)
    header.locator("button").click()
    values = table.locator("tbody tr > td:nth-child(4)").evaluate_all(column)
    assert header.get_attribute("aria-sort") == "ascending"
    assert values == sorted(values)
    assert len(set(values)) > 2
    header.locator("button").focus()
    opened.keyboard.press("Enter")
    values = table.locator("tbody tr > td:nth-child(4)").evaluate_all(column)
    assert header.get_attribute("aria-sort") == "descending"
    assert values == sorted(values, reverse=True)


def test_the_maps_tooltip_names_the_block(visit, hostile):
    opened = visit(hostile[0])
    figure = opened.locator("#maps .chart").nth(2)
    figure.scroll_into_view_if_needed()
    figure.locator("svg .mark-text text").first.hover()
    tooltip = opened.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    said = " ".join(tooltip.inner_text().split())
    for words in ("loss step s", "input step t", "reference", "largest difference", "this block is"):
        assert words in said


def test_tooltips_show_names_that_look_like_markup_as_text(visit, hostile):
    opened = visit(hostile[0])
    opened.locator("#steps .chart").first.scroll_into_view_if_needed()
    opened.locator("#steps .chart").first.locator("svg .mark-symbol path").first.hover()
    tooltip = opened.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    assert BACKEND in tooltip.inner_text()
    assert tooltip.locator("img").count() == 0
    assert HOSTILE in opened.locator("#steps figcaption").first.inner_text()
    assert opened.title() != "owned"


def test_values_that_are_missing_infinite_zero_or_huge_are_drawn(visit, tmp_path):
    folder = big_run.write(tmp_path / "run", cases=5, backends=4, steps=3)
    for name in ("gradients", "jacobian", "timesteps"):
        table = pd.read_csv(folder / f"{name}.csv")
        odd = {
            "case-1": (float("inf"), "not finite"),
            "case-2": (float("nan"), "not repeatable"),
            "case-3": (0.0, "agrees"),
        }
        for case, (value, verdict) in (odd | {"case-4": (1e300, "disagrees")}).items():
            columns = [column for column in ("value", "abs_err", "reference") if column in table]
            table.loc[table["case"] == case, columns if verdict == "agrees" else columns[:2]] = value
            table.loc[table["case"] == case, "verdict"] = verdict
        table.to_csv(folder / f"{name}.csv", index=False)
    html.write(folder)
    opened = visit(folder)
    assert opened.get_by_text("could not be drawn").count() == 0
    assert opened.locator("#maps svg.marks").count() >= 3 * 4


def test_a_command_can_be_copied(visit, investigated):
    opened = visit(investigated, permissions=["clipboard-read", "clipboard-write"])
    opened.locator("button.copy[data-copy=command]").click()
    opened.get_by_text("copied", exact=True).wait_for()
    assert opened.evaluate("navigator.clipboard.readText()") == opened.locator("#command").inner_text()


def test_what_agrees_can_be_hidden_and_another_series_picked(visit, investigated):
    opened = visit(investigated)
    opened.locator("#verdicts details.case").first.evaluate("node => { node.open = true }")
    rows = opened.locator("#verdicts tbody tr:visible")
    before = rows.count()
    opened.locator("#only-wrong").check()
    assert 0 < rows.count() < before
    panel = opened.locator("#steps figure").first
    boxes = panel.locator("input[type=checkbox]")
    assert boxes.first.is_checked()
    boxes.first.uncheck()
    opened.wait_for_timeout(100)
    assert not panel.locator("input[type=checkbox]").first.is_checked()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_charts_take_the_schemes_colours(visit, hostile, scheme):
    opened = visit(hostile[0], color_scheme=scheme)
    light = opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    label = opened.locator("#steps svg .role-axis-label text").first
    muted = opened.evaluate("getComputedStyle(document.querySelector('.mute')).color")
    assert label.evaluate("node => getComputedStyle(node).fill") == muted


def test_a_narrow_screen_needs_no_sideways_scrolling(visit, hostile, investigated):
    for folder in (hostile[0], investigated):
        opened = visit(folder, viewport={"width": 400, "height": 800})
        assert opened.evaluate("document.documentElement.scrollWidth") <= 400


def test_it_prints_with_its_charts_and_without_its_controls(visit, hostile):
    opened = visit(hostile[0])
    opened.emulate_media(media="print")
    assert opened.locator("#maps svg.marks").first.is_visible()
    for hidden in ("nav", "button.copy", "#only-wrong"):
        assert not opened.locator(hidden).first.is_visible()
    assert opened.pdf()[:5] == b"%PDF-"


def test_compare_writes_it(tmp_path):
    args = ["compare", "flux-1547", "--no-live", "--backend", "flux-0.16.5/*", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "bridge", *args], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert "report.html" in done.stdout
    parsed(tmp_path / "run")


def test_the_committed_sample_shows_both_reports():
    seed = Path(__file__).parent.parent / "results" / "seed"
    document = parsed(seed)
    said = text(document.query("#findings")[0])
    assert "the recurrent term is dropped unless parameter gradients are requested too" in said
    assert "the adjoint recursion runs forward in time" in said
    assert "wrongly same" in text(document.query("#lengths")[0])
    assert embedded(document)["maps"]
