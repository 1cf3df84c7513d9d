"""A sweep finds planted faults and nothing in right gradients, survives kills, and gives the same files each time."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import psutil
import pytest
from conftest import require_mxnet
from planted_backend import Here, planted

import bridge
from bridge import batches, kinds
from bridge.answers import CRASHED, Reply
from bridge.backends.registry import Sources
from bridge.batches import Assignment, examine, run_batch
from bridge.errors import BadInputError
from bridge.faults import CATALOGUE, Matcher
from bridge.space import sample
from bridge.sweep import sweep
from bridge.tolerance import truth

HERE = os.path.dirname(__file__)
TABLES = ("cases.csv", "findings.csv")


@pytest.fixture(autouse=True)
def _closed():
    yield
    batches.close_bench()


def assignment(backend, seed=0):
    return Assignment(seed, (backend,), (backend.name,), Sources(), 30.0)


def symptoms(rows):
    return [one for row in rows for result in row["results"].values() for one in result["symptoms"]]


def test_a_case_is_a_function_of_seed_and_index_alone():
    assert sample(3, 17).task.case == sample(3, 17).task.case
    assert sample(3, 17).task.case.digest() != sample(3, 18).task.case.digest()
    assert sample(3, 17).task.case.digest() != sample(4, 17).task.case.digest()


def test_the_space_reaches_its_bounds():
    drawn = [sample(0, index) for index in range(1500)]
    features = pd.DataFrame([one.features for one in drawn])
    assert set(features["layers"]) == {1, 2, 3, 4}
    assert set(features["mode"]) == set(bridge.case.MODES)
    assert features["seq_len"].min() == features["batch"].min() == features["hidden_size"].min() == 1
    assert features["seq_len"].max() == 40
    assert features["batch"].max() == 8
    assert features["hidden_size"].max() == 32
    for field, count in {"head": 3, "weights": 7, "sequence": 3, "states": 3, "grad_req": 2, "training": 2}.items():
        assert features[field].nunique() == count, field
    assert features.loc[features["mode"] == "lstm", "requested"].nunique() == 15
    assert features.loc[features["mode"] == "gru", "requested"].nunique() == 7
    assert features["malformed"].nunique() == 9
    gru = features.loc[features["mode"] == "gru", "reset bias"]
    assert 0.3 < gru.mean() < 0.6  # zero weights have none either
    assert not features.loc[features["mode"] != "gru", "reset bias"].any()


@pytest.mark.parametrize("fault", CATALOGUE)
def test_a_planted_fault_is_found_within_300_cases(fault):
    plan, rows = assignment(Here(fault), seed=2), []
    for start in range(0, 300, 10):
        rows += run_batch(plan, start, 10)
        if any(fault in one["fault"].split("+") for one in symptoms(rows)):
            break
    found = {kind.fault for kind in kinds.group(rows)}
    assert fault in {name for kind in found for name in kind.split("+")}


def test_a_case_that_cannot_tell_two_faults_apart_counts_for_the_usual_one():
    rows = run_batch(assignment(Here("forward-order-absorbed"), seed=1), 0, 60)
    names = {one["fault"] for one in symptoms(rows)}
    assert {"forward-order", "recurrent-term-dropped"} <= names  # with one step, or a head on the last one alone
    settled = kinds.settle(rows, 1)
    (absorbed,) = [kind for kind in kinds.group(settled) if kind.verdict == "disagrees"]
    assert absorbed.fault == "forward-order-absorbed"
    clear = {row["index"] for row in rows if absorbed.fault in {one["fault"] for one in symptoms([row])}}
    assert set(absorbed.indices[: len(clear)]) == clear  # what only this name explains is shrunk
    assert set(absorbed.indices) == {
        row["index"] for row in rows if any(one["verdict"] == "disagrees" for one in symptoms([row]))
    }


def test_two_faults_of_one_backend_stay_two():
    first, second = (
        run_batch(assignment(Here(fault), seed=1), 0, 60) for fault in ("forward-order", "forward-order-absorbed")
    )
    rows = [
        {**row, "results": {"planted-1/two": result}}
        for place, pair in enumerate(zip(first, second, strict=True))
        for row in [pair[place % 2]]
        for result in row["results"].values()
    ]
    settled = kinds.settle(rows, 1)
    assert shown(settled, "forward-order-absorbed") >= shown(rows, "forward-order-absorbed")
    told_apart = {
        row["index"]
        for row in first[::2]
        if row["features"]["head"] != "last" and row["features"]["seq_len"] > 1 and symptoms([row])
    }
    assert told_apart
    assert told_apart <= shown(settled, "forward-order")


def shown(rows, fault):
    return {row["index"] for row in rows if fault in {one["fault"] for one in symptoms([row])}}


def test_a_right_backend_has_no_findings():
    assert not symptoms(run_batch(assignment(Here(""), seed=1), 0, 150))


def test_accepted_shapes_and_deaths_are_findings(tmp_path):
    rows = run_batch(assignment(Here("shapes"), seed=1), 0, 60)
    assert {one["fault"] for one in symptoms(rows)} == {batches.ACCEPTED}
    found = sweep([planted("kill")], out=tmp_path, max_cases=20, jobs=1)
    (kind,) = [kind for kind, _ in found.kinds]
    assert kind.verdict == "crashed"
    assert kind.condition.text == "mode == gru"
    assert set(found.cases.loc[found.cases["mode"] == "gru", "reason"]) == {"the process ended with exit code 7"}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (  # as in the observations of Flux 0.14.25 on flux-gru, and on flux-lstm with more behind it
            "MethodError: no method matching +(::@NamedTuple{cell::@NamedTuple{Wi::Matrix{Float64}, Wh::Matrix{F",
            "MethodError: no method matching +",
        ),
        (
            "MethodError: no method matching +(::@NamedTuple{cell::@NamedTuple{Wi::Matrix{Float64}; Wh::Matrix{",
            "MethodError: no method matching +",
        ),
        ("the process ended with exit code 7", "the process ended with exit code #"),
        ("DimensionMismatch: arrays have 3 and 4 rows", "DimensionMismatch: arrays have # and # rows"),
    ],
)
def test_one_defect_that_raises_on_other_types_and_sizes_is_one_finding(said, kept):
    task = next(one.task for one in (sample(1, index) for index in range(50)) if not one.task.special)
    reply = Reply.without_values(task.case.quantities, CRASHED, said)
    (symptom,) = examine("here", task, truth(task), reply, Matcher())["symptoms"]
    assert symptom["fault"] == kept


def test_of_a_backends_notes_only_an_overwritten_input_is_a_finding():
    plan = assignment(Here(""))
    task = next(one.task for one in (sample(1, index) for index in range(50)) if not one.task.special)
    with batches.bench_of(plan) as bench:
        reply = bench.ask(plan.names[0], task)

    def found(note):
        noted = dataclasses.replace(reply, notes=(note,))
        return [one["fault"] for one in examine("here", task, truth(task), noted, Matcher())["symptoms"]]

    assert found("MXNet wrote into its input h0") == [batches.OVERWRITTEN]
    assert found("started from the state that an earlier call left behind, as this variant asks") == []


def test_ten_crashes_in_a_row_stop_the_backend_alone():
    stops = kinds.Stops()
    died = {"verdict": "crashed", "reason": "gone", "symptoms": []}
    fine = {"verdict": "agrees", "reason": "", "symptoms": []}
    kept = [stops.feed({"index": i, "results": {"a": died, "b": fine if i == 9 else died}}) for i in range(12)]
    assert [len(row["results"]) for row in kept] == [2] * 10 + [1, 1]
    assert list(stops.reasons) == ["a"]
    assert "gone" in stops.reasons["a"]


def test_which_backend_answers_first_does_not_show():
    results = {name: {"verdict": "agrees", "reason": "", "symptoms": []} for name in ("a", "b", "c")}
    other = dict(reversed(results.items()))
    rows = [[kinds.Stops().feed({"index": 0, "digest": "", "features": {}, "results": r})] for r in (results, other)]
    assert kinds.rows_for_table(rows[0]) == kinds.rows_for_table(rows[1])


def same_files(one, other):
    for name in TABLES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    for folder in ("cases", "reproducers"):
        names = sorted(path.name for path in (one / folder).glob("*"))
        assert names == sorted(path.name for path in (other / folder).glob("*"))
        assert all((one / folder / name).read_bytes() == (other / folder / name).read_bytes() for name in names)


def test_jobs_and_resuming_give_the_same_files(tmp_path):
    backends = [planted("time-reversed"), planted("kill")]
    sweep(backends, out=tmp_path / "one", max_cases=50, seed=5, jobs=1)
    sweep(backends, out=tmp_path / "two", max_cases=50, seed=5, jobs=2)
    same_files(tmp_path / "one", tmp_path / "two")
    sweep(backends, out=tmp_path / "three", max_cases=25, seed=5, jobs=1)  # ends within a batch
    sweep(backends, out=tmp_path / "three", max_cases=50, seed=5, jobs=2, resume=True)
    same_files(tmp_path / "one", tmp_path / "three")


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from planted_backend import planted
from bridge.sweep import sweep
if __name__ == "__main__":
    sweep([planted("time-reversed", slow=0.005)], out={out!r}, max_cases={cases}, seed=5, jobs=2, resume=True)
"""


def started(out, batches_done, cases=60):
    """A sweep in a process of its own, once it has finished so many batches; with its children."""
    script = SCRIPT.format(here=HERE, out=str(out), cases=cases)
    path = out.parent / f"{out.name}.py"
    path.write_text(script)
    process = subprocess.Popen([sys.executable, str(path)], start_new_session=True, stderr=subprocess.PIPE)
    while len(list(out.glob("journal/0*.json"))) < batches_done:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    return process, psutil.Process(process.pid).children(recursive=True)


def gone(processes):
    deadline = time.monotonic() + 30
    while any(one.is_running() and one.status() != "zombie" for one in processes):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return True


def test_killed_it_loses_the_batches_in_flight_and_goes_on(tmp_path):
    process, children = started(tmp_path / "killed", 2)
    process.kill()
    process.wait()
    process.stderr.close()
    assert gone(children)
    assert not (tmp_path / "killed" / "cases.csv").exists()
    sweep([planted("time-reversed", slow=0.005)], out=tmp_path / "killed", max_cases=60, seed=5, jobs=2, resume=True)
    sweep([planted("time-reversed", slow=0.005)], out=tmp_path / "whole", max_cases=60, seed=5, jobs=2)
    same_files(tmp_path / "killed", tmp_path / "whole")


def test_interrupted_it_saves_what_is_done_and_leaves_no_process(tmp_path):
    process, children = started(tmp_path / "out", 1, cases=1000)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 0, process.stderr.read()
    process.stderr.close()
    assert gone(children)
    done = len(pd.read_csv(tmp_path / "out" / "cases.csv"))
    assert 20 <= done < 1000
    assert json.loads((tmp_path / "out" / "run.json").read_text())["interrupted"]


def test_another_sweep_in_the_folder_is_refused(tmp_path):
    sweep([planted()], out=tmp_path, max_cases=3, jobs=1)
    with pytest.raises(BadInputError, match="--resume"):
        sweep([planted()], out=tmp_path, max_cases=3, jobs=1)
    with pytest.raises(BadInputError, match="seed: expected 0, as the sweep began, found 1"):
        sweep([planted()], out=tmp_path, max_cases=3, jobs=1, seed=1, resume=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridge.space.MAX_SEQ_LEN", 39)
        with pytest.raises(BadInputError, match=r"cases: expected [0-9a-f]{64}, as the sweep began, found"):
            sweep([planted()], out=tmp_path, max_cases=3, jobs=1, resume=True)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BadInputError, match="a folder that can be written"):
        sweep([planted()], out=file, max_cases=3, jobs=1)
    with pytest.raises(BadInputError, match="a dask scheduler that answers"):
        sweep([planted()], out=tmp_path / "new", max_cases=3, scheduler="nonsense://here")


def test_a_cluster_of_which_a_worker_dies_gives_the_same_files(tmp_path):
    from distributed import LocalCluster

    backends = [planted("time-reversed", slow=0.005)]
    sweep(backends, out=tmp_path / "here", max_cases=60, seed=5, jobs=1)
    killed = []

    def told(done, total, findings):
        if not killed:
            victim = next(iter(cluster.workers.values()))
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
        sweep(backends, out=tmp_path / "there", max_cases=60, seed=5, scheduler=cluster.scheduler_address, told=told)
    assert killed
    same_files(tmp_path / "here", tmp_path / "there")


@pytest.mark.live
def test_mxnet_is_swept_and_its_findings_come_with_scripts_that_show_them(tmp_path):
    require_mxnet()
    found = sweep(["mxnet-*/fused-native"], out=tmp_path, max_cases=40, seed=1, jobs=2)
    table = found.findings.set_index("finding")
    assert {name.partition("/")[2] for name in table["backend"]} == {"fused-native"}
    dropped = table.loc[[name for name in table.index if name.endswith("recurrent-term-dropped")]].iloc[0]
    assert "params not requested" in dropped["condition"]
    case = bridge.load_case(tmp_path / "cases" / f"{dropped['min_case']}.json")
    assert (case.layers, case.batch, case.hidden_size) == (1, 1, 1)
    assert case.seq_len <= 2
    script = tmp_path / "reproducers" / dropped["reproducer"]
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "the fault shows" in ran.stdout
    assert "bridge" not in [line.split()[1] for line in script.read_text().splitlines() if line.startswith("import ")]
    report = script.with_suffix(".md").read_text()
    assert "2.0.0b1" in report
    assert ran.stdout.strip() in report
    unexplained = table[(table["fault"] == "unexplained") & (table["verdict"] == "disagrees")]
    assert len(unexplained) <= 1


@pytest.mark.live
def test_no_script_is_written_for_what_does_not_show(tmp_path):
    require_mxnet()
    from bridge.repro import of_case
    from bridge.reproducers import Fault, Wanted, reproduce

    case = bridge.load_case("mxnet-21143")
    with pytest.raises(BadInputError, match="a case on which the backend is wrong"):
        of_case(case, "mxnet-*/fused-onednn", tmp_path)
    assert not list(tmp_path.iterdir())
    (backend,) = bridge.backends.registry.select(["mxnet-*/fused-onednn"])
    fault = Fault("none", "none", "nothing.", "", "disagrees", ("dx",))
    versions = {"framework": "mxnet", "version": "2.0.0b1"}
    assert reproduce([Wanted(backend, bridge.answers.Task(case, 5), fault, versions)]) == [None]
    written = of_case(case, "mxnet-*/cached-native", tmp_path)
    assert [path.suffix for path in written] == [".py", ".md"]
    assert np.char.find(written[0].read_text(), "CachedOp") > 0
