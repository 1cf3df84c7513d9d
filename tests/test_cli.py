"""The command: exit codes, one line for bad input, what it prints."""

import json
import os
import re
import shutil
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from conftest import require_mxnet

import bridge
from bridge.cli import main


def gradbridge(*args, **more):
    return subprocess.run(
        [sys.executable, "-m", "bridge", *map(str, args)],
        capture_output=True, text=True, timeout=120, check=False, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["compare", "no-such-case"], "no-such-case"),
        (["compare", "bad.json"], "bad.json: mode: expected one of rnn_tanh"),
        (["compare", "flux-1547", "--backend", "no-such-backend"], "no-such-backend"),
        (["compare", "flux-1547", "--out", "/proc/nowhere"], "/proc/nowhere: expected a folder that can be written"),
        (["compare", "flux-1547", "--timeout", "0"], "--timeout"),
        (["compare", "flux-1547", "--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, words, tmp_path):
    document = json.loads((bridge.load_case("flux-1547").save(tmp_path / "bad.json")).read_text())
    (tmp_path / "bad.json").write_text(json.dumps(document | {"mode": "elman"}))
    done = gradbridge(*args, cwd=tmp_path)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert words in last
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]


def test_cases_lists_each_with_a_line():
    result = CliRunner().invoke(main, ["cases"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == list(bridge.shipped_cases())


def test_version_and_help():
    assert bridge.__version__ in CliRunner().invoke(main, ["--version"]).output
    pages = dict(main.commands)
    for name, command in main.commands.items():
        if isinstance(command, click.Group):
            pages |= {f"{name} {inner}": one for inner, one in command.commands.items()}
            del pages[name]
    for name, command in pages.items():
        text = CliRunner().invoke(main, [*name.split(), "--help"]).output
        assert re.search(rf"Example:\n +gradbridge {name}", text), name
        assert all(option.help for option in command.params if isinstance(option, click.Option)), name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_made_and_complete_commands_options_and_cases(shell):
    def completed(line, word):
        words = {"COMP_WORDS": line, "COMP_CWORD": word if shell == "fish" else str(len(line.split()) - (word != ""))}
        env = os.environ | {"_GRADBRIDGE_COMPLETE": f"{shell}_complete"} | words
        script = "from bridge.cli import main; main(prog_name='gradbridge')"
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
        return done.stdout

    if shutil.which(shell) is None and shell == "bash":
        pytest.skip("bash is not installed; click asks it for its version")
    result = CliRunner().invoke(main, [], prog_name="gradbridge", env={"_GRADBRIDGE_COMPLETE": f"{shell}_source"})
    assert result.exit_code == 0
    assert f"_GRADBRIDGE_COMPLETE={shell}_complete" in result.output
    assert "compare" in completed("gradbridge com", "com")
    assert "--relations" in completed("gradbridge compare --rel", "--rel")
    assert "mxnet-21143" in completed("gradbridge compare mx", "mx")


def test_importing_bridge_or_asking_for_help_imports_no_framework_and_no_pandas(run_python):
    heavy = "{'mxnet', 'juliacall', 'pandas', 'torch', 'rich', 'execnet', 'jinja2'}"
    look = f"; import sys; print(sorted({heavy} & set(sys.modules)))"
    assert run_python("import bridge" + look).strip() == "[]"
    assert run_python("import bridge.cli" + look).strip() == "[]"


@pytest.mark.live
def test_compare_prints_the_report_writes_the_files_and_sets_the_exit_code(tmp_path):
    require_mxnet()
    args = ["compare", "mxnet-21143", "--backend", "fused-*", "--out", tmp_path / "run"]
    done = gradbridge(*args, "--fail-on-disagreement", env=os.environ | {"COLUMNS": "100"})
    assert done.returncode == 1, done.stderr
    assert "WRONGLY SAME" in done.stdout
    assert "mxnet-2.0.0b1/fused-native" in done.stdout
    names = {"gradients", "timesteps", "summary", "findings", "pairs", "backends"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == {f"{name}.csv" for name in names} | {
        "run.json",
        "report.html",
    }
    done = gradbridge("compare", "mxnet-21143", "--backend", "*-onednn", "--out", tmp_path, "--fail-on-disagreement")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


def test_timings_go_beside_the_report_and_say_where_the_time_went(tmp_path):
    args = ["compare", "flux-1547", "--backend", "flux-0.12.1/recur-*", "--no-live", "--out", tmp_path]
    plain, told = gradbridge(*args), gradbridge(*args, "--timings", "--format", "parquet")
    assert told.stdout == plain.stdout
    rows = re.findall(r"^(\S.*?) +([0-9.]+) +([0-9.]+)$", told.stderr, re.MULTILINE)
    phases = {name: float(seconds) for name, seconds, _ in rows}
    assert {"asking every backend", "judging", "diagnosis", "tables", "report.html", "printing"} <= set(phases)
    assert phases.pop("in all") == pytest.approx(sum(phases.values()), abs=0.01 * len(phases))
    assert (tmp_path / "gradients.parquet").exists()
    assert (tmp_path / "report.html").exists()
    known = json.loads((tmp_path / "run.json").read_text())["seconds"]["phases"]
    assert [one["name"] for one in known] == ["asking every backend", "judging", "diagnosis", "ending the workers"]


@pytest.mark.live
def test_no_backend_that_can_run_is_exit_code_3(tmp_path):
    require_mxnet()
    done = gradbridge("compare", "flux-1547", "--backend", "fused-onednn", "--out", tmp_path / "run")
    assert done.returncode == 3
    assert "no backend could run at all" in done.stderr
    assert (tmp_path / "run" / "summary.csv").exists()


def test_a_flux_that_cannot_start_is_a_row_and_not_the_end(tmp_path):
    (tmp_path / "julia").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "julia").chmod(0o755)
    env = os.environ | {
        "PYTHON_JULIACALL_EXE": str(tmp_path / "julia"),
        "PYTHON_JULIACALL_PROJECT": str(tmp_path),
        "GRADBRIDGE_CACHE": str(tmp_path / "cache"),
    }
    done = gradbridge("compare", "flux-1547", "--backend", "flux-*/cell-for-explicit", "--backend", "flux-unknown*",
                      "--out", tmp_path / "run", env=env)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "flux-unknown/" in (tmp_path / "run" / "backends.csv").read_text()
    assert "agrees" in done.stdout


def test_a_reader_that_goes_away_does_not_change_the_exit_code(tmp_path):
    command = (
        f"{sys.executable} -m bridge compare flux-1547 --no-live --backend 'flux-0.16*' --out {tmp_path} | head -1"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
