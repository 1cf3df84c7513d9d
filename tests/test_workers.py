"""Workers survive what frameworks do. Every fault is real: a process that dies, hangs or raises."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import bridge
from bridge.answers import Task
from bridge.backends.base import LiveBackend
from bridge.workers import AHEAD, Launch, Worker, WorkerError

HERE = str(Path(__file__).parent)


def launch(how, **more):
    return Launch("faulty_backend", {"how": how}, path=(HERE,), **more)


def backend(how, **more):
    return LiveBackend(f"faulty-1/{how}", "", launch(how, **more))


def case(name="flux-rnn-tanh", called=None):
    loaded = bridge.load_case(name)
    return loaded.replace(name=called) if called else loaded


def children():
    return psutil.Process().children(recursive=True)


@pytest.mark.parametrize(
    ("how", "verdict", "words"),
    [
        ("kill", "crashed", "killed by SIGKILL"),
        ("segfault", "crashed", "killed by SIGSEGV"),
        ("leave", "crashed", "exit code 7"),
        ("sleep", "timed out", "no answer after 1.5 s"),
        ("raises", "crashed", "RuntimeError: the first line"),
        ("refuse", "unsupported", "not on a Monday"),
    ],
)
def test_a_fault_is_a_verdict_and_the_remaining_cases_go_on(how, verdict, words):
    cases = [case(called="before"), case(called=how), case(called="after")]
    comparison = bridge.compare(cases, [backend(how)], timeout=1.5)
    verdicts = comparison.summary.groupby("case", sort=False)["verdict"].unique()
    assert list(verdicts["before"]) == ["agrees"]
    assert list(verdicts[how]) == [verdict]
    assert list(verdicts["after"]) == ["agrees"]
    reasons = comparison.summary[comparison.summary["case"] == how]["reason"]
    assert reasons.str.contains(words, regex=False).all()
    assert not reasons.str.contains("second").any()


def test_a_backend_that_cannot_start_says_why_once_and_the_others_run():
    comparison = bridge.compare(case(), [backend("import"), backend("none")])
    table = comparison.backends.set_index("backend")
    assert table.loc["faulty-1/import", "state"] == "unavailable"
    assert "no module named nonsense" in table.loc["faulty-1/import", "reason"]
    verdicts = comparison.summary.groupby("backend")["verdict"].unique()
    assert list(verdicts["faulty-1/import"]) == ["unavailable"]
    assert list(verdicts["faulty-1/none"]) == ["agrees"]


def test_a_process_that_has_given_its_answers_makes_room_for_a_new_one():
    worker = Worker(launch("none", lifetime=2), timeout=30)
    processes = []
    for count in (1, 1, 1, 3, 1):
        assert all(reply.answers["dx"].verdict == "" for reply in worker.ask_all([Task(case(), 5)] * count))
        processes.append(worker._process.pid)
    assert len(set(processes)) == 3
    assert processes[0] == processes[1] != processes[2] == processes[3] != processes[4]
    worker.stop()


def test_a_process_that_died_between_two_tasks_is_a_crash_and_the_next_task_gets_a_new_one():
    worker = Worker(launch("none"), timeout=30)
    task = Task(case(), 5)
    assert worker.ask(task).answers["dx"].verdict == ""
    worker._process.kill()
    time.sleep(0.5)
    assert "SIGKILL" in worker.ask(task).answers["dx"].reason
    assert worker.ask(task).answers["dx"].verdict == ""
    worker.stop()


def test_every_task_gets_its_own_reply_where_many_are_sent_ahead_and_some_kill_the_process():
    tasks = [Task(case(called=f"{'kill' if n in (0, 5, 6) else 'fine'}-{n}"), 1 + n % 5) for n in range(4 * AHEAD)]
    worker = Worker(launch("kill"), timeout=30)
    for n, (task, reply) in enumerate(zip(tasks, worker.ask_all(tasks), strict=True)):
        if n in (0, 5, 6):
            assert "SIGKILL" in reply.answers["dx"].reason
        else:
            expected = bridge.reference.gradients(task.case, task.seq_len)["dx"]
            assert reply.answers["dx"].values.tobytes() == expected.tobytes()
    worker.stop()


def test_replies_that_nobody_waited_for_are_not_given_to_the_next_task():
    worker = Worker(launch("none"), timeout=30)
    next(worker.ask_all([Task(case(), 5)] * (2 * AHEAD)))
    reply = worker.ask(Task(case(), 2))
    assert reply.answers["dx"].values.shape == case().x[:2].shape
    worker.stop()
    assert not children()


def test_an_interpreter_that_is_not_there_is_unavailable():
    broken = backend("none", python="/nowhere/python3")
    summary = bridge.compare(case(), [broken]).summary
    assert set(summary["verdict"]) == {"unavailable"}
    assert set(summary["reason"]) == {"there is no interpreter /nowhere/python3"}


def test_a_program_that_is_no_python_is_unavailable():
    assert set(bridge.compare(case(), [backend("none", python="/bin/false")]).summary["verdict"]) == {"unavailable"}


def test_a_backend_that_never_gets_ready_is_timed_out():
    with pytest.raises(WorkerError, match="not ready after 1 s") as caught:
        Worker(launch("never-ready", start_timeout=1), timeout=5).start()
    assert caught.value.verdict == "timed out"


def test_values_of_the_wrong_shape_are_a_crash_that_names_both_shapes():
    summary = bridge.compare(case(), [backend("shapeless")]).summary.set_index("quantity")
    assert summary.loc["dx", "verdict"] == "crashed"
    assert "(5, 2, 2)" in summary.loc["dx", "reason"]
    assert "(1, 2, 3)" in summary.loc["dx", "reason"]


def test_bits_that_change_between_two_calls_are_not_repeatable_and_leave_no_value_in_the_table():
    comparison = bridge.compare(case(called="unsteady"), [backend("unsteady")])
    summary = comparison.summary.set_index("quantity")
    assert summary.loc["dx", "verdict"] == "not repeatable"
    assert summary.loc["dweight_ih", "verdict"] == "agrees"
    rows = comparison.gradients[comparison.gradients["quantity"] == "dx"]
    assert len(rows) == 20
    assert rows["value"].isna().all()
    side = comparison.not_repeatable
    assert len(side) == 20
    assert (side["first"] != side["second"]).all()


def test_no_process_is_left_behind():
    bridge.compare(case(called="sleep"), [backend("sleep"), backend("none")], timeout=0.5)
    assert [child for child in children() if child.is_running() and child.status() != "zombie"] == []


SCRIPT = """
import sys; sys.path[:0] = [{here!r}]
import bridge
from test_workers import backend, case
comparison = bridge.compare([case(called="first"), case(called="sleep")], [backend("sleep")], timeout=500)
comparison.save({out!r})
print("interrupted", comparison.interrupted)
"""


def started(tmp_path):
    """A run in its own session whose worker hangs in the second case."""
    code = SCRIPT.format(here=HERE, out=str(tmp_path / "out"))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 30
    while not (workers := psutil.Process(process.pid).children(recursive=True)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(4)
    return process, workers


def gone(workers):
    deadline = time.monotonic() + 10
    while any(worker.is_running() and worker.status() != "zombie" for worker in workers):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_ctrl_c_keeps_finished_rows_and_leaves_no_process(tmp_path):
    process, workers = started(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30)[0].strip() == "interrupted True"
    assert gone(workers)
    written = (tmp_path / "out" / "summary.csv").read_text()
    assert "first,faulty-1/sleep,dx,agrees" in written
    assert ",sleep" not in written.replace("faulty-1/sleep", "")


def test_a_killed_parent_takes_its_workers_with_it(tmp_path):
    process, workers = started(tmp_path)
    process.kill()
    process.communicate()
    assert gone(workers)
    assert not (tmp_path / "out").exists()
