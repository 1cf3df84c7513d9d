"""Recordings: they answer bit for bit, refuse by name what is corrupt, and never answer for another case."""

import json
from pathlib import Path

import numpy as np
import pytest

import bridge
from bridge.answers import Answer, Reply, Task
from bridge.backends import recorded
from bridge.backends.registry import Sources, select


@pytest.fixture
def folder(tmp_path):
    """A recording of one made-up line: all kinds of answers, two variants, one case."""
    case = bridge.load_case("flux-rnn-tanh")
    right = bridge.reference.gradients(case)
    first = {name: Answer(right[name]) for name in case.quantities}
    second = first | {
        "dx": Answer(right["dx"], again=right["dx"] * 2),
        "dh0": Answer(right["dh0"].sum(axis=1, keepdims=True), batch_summed=True, reason="said so"),
        "dbias_ih": Answer(nothing=True),
        "dbias_hh": Answer(((np.array([1.0, np.nan] + [np.inf] * 1),),), inexpressible=True),
        "dweight_hh": Answer(verdict="crashed", reason="MethodError: no method"),
    }
    replies = {
        ("cell-for-explicit", case.name, 5, None): Reply(first),
        ("recur-map-explicit", case.name, 5, None): Reply(second, ("a note",), {"h0": np.full((1, 2, 3), 0.1)}),
        ("recur-map-explicit", case.name, 5, 2): Reply({"dx": first["dx"]}),
    }
    versions = {"framework": "flux", "version": "9.9.9", "julia": "1.10.8"}
    return recorded.write(tmp_path / "flux-9.9.9", "flux-9.9.9", versions, [case], replies), replies


def test_what_was_written_reads_back_to_the_bit(folder):
    path, replies = folder
    read = recorded.Recording.open(path).replies("flux-rnn-tanh")
    assert list(read) == list(replies)
    for key, reply in replies.items():
        assert read[key].to_plain() == reply.to_plain()


def test_files_are_plain_data_and_the_same_every_time(folder, tmp_path):
    path, replies = folder
    case = bridge.load_case("flux-rnn-tanh")
    again = recorded.write(tmp_path / "again", "flux-9.9.9", recorded.Recording.open(path).versions, [case], replies)
    for name in ("manifest.json", "flux-rnn-tanh.json"):
        assert (path / name).read_bytes() == (again / name).read_bytes()
        json.loads((path / name).read_text())


def ask(path, case, variant="cell-for-explicit"):
    (backend,) = select([f"flux-9.9.9/{variant}"], Sources(live=False, recordings=(path,)))
    return backend.open(None).ask(Task(case, case.seq_len))


def test_a_recorded_case_is_answered_under_another_name_too(folder):
    case = bridge.load_case("flux-rnn-tanh").replace(name="renamed", source="elsewhere")
    assert ask(folder[0], case).answers["dx"].values.shape == (5, 2, 2)


@pytest.mark.parametrize(
    "change",
    [{"requested": ("x",)}, {"head": "last"}, {"dtype": "float32"}, {"seq_lens": (4,)}, {"h0": np.zeros((1, 2, 3))}],
)
def test_a_case_that_differs_in_one_option_or_bit_is_unavailable_with_a_line_on_how_to_get_it(folder, change):
    case = bridge.load_case("flux-rnn-tanh").replace(**change)
    answers = ask(folder[0], case).answers
    assert {answer.verdict for answer in answers.values()} == {"unavailable"}
    assert all("another case of that name is recorded" in answer.reason for answer in answers.values())
    assert all("to run it live" in answer.reason for answer in answers.values())


def test_one_bit_of_one_weight_changes_everything(folder):
    case = bridge.load_case("flux-rnn-tanh")
    weights = case.params[0][0]
    changed = np.array(weights.weight_hh)
    changed[0, 0] = np.nextafter(changed[0, 0], 1)
    case = case.replace(params=[[weights._replace(weight_hh=changed)]])
    assert ask(folder[0], case).answers["dx"].verdict == "unavailable"


def test_what_a_recording_does_not_hold_is_unavailable(folder):
    path, _ = folder
    case = bridge.load_case("flux-rnn-tanh")
    (backend,) = select(["flux-9.9.9/recur-map-explicit"], Sources(live=False, recordings=(path,)))
    answers = backend.open(None).ask(Task(case, 5, 2)).answers
    assert answers["dx"].values is not None
    assert answers["y"].verdict == "unavailable"
    assert backend.open(None).ask(Task(case, 5, 1)).answers["dx"].verdict == "unavailable"


def edit_manifest(change):
    def corrupt(path):
        manifest = json.loads((path / "manifest.json").read_text())
        change(manifest)
        (path / "manifest.json").write_text(json.dumps(manifest))

    return corrupt


@pytest.mark.parametrize(
    ("corrupt", "words"),
    [
        (
            lambda p: (p / "manifest.json").write_text("{"),
            "manifest.json: expected a recording's file, found a corrupt",
        ),
        (lambda p: (p / "manifest.json").write_text("[]"), "manifest.json: expected a recording's manifest"),
        (edit_manifest(lambda m: m.update(format=2)), "manifest.json: format: expected 1, found 2"),
        (edit_manifest(lambda m: m.pop("variants")), "manifest.json: expected a recording's manifest"),
    ],
)
def test_a_corrupt_manifest_is_refused_by_name(folder, corrupt, words):
    path, _ = folder
    corrupt(path)
    with pytest.raises(bridge.BadInputError, match=words) as caught:
        recorded.find([path])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("0.1", "0.2", 1),
        lambda text: "",
        lambda text: text + " ",
    ],
)
def test_a_changed_file_is_refused_by_name(folder, corrupt):
    path, _ = folder
    file = path / "flux-rnn-tanh.json"
    file.write_text(corrupt(file.read_text()))
    with pytest.raises(bridge.BadInputError, match=r"flux-rnn-tanh\.json: expected the file with SHA-256") as caught:
        bridge.compare(
            "flux-rnn-tanh", ["flux-9.9.9/*"], sources=Sources(live=False, recordings=(path,))
        )  # fmt: skip
    assert "\n" not in str(caught.value)


def test_a_folder_without_recordings_is_refused(tmp_path):
    with pytest.raises(bridge.BadInputError, match=r"no manifest\.json"):
        recorded.find([tmp_path])


def test_shipped_recordings_open_and_know_the_shipped_cases():
    shipped = {recording.line: recording for recording in recorded.find()}
    assert set(shipped) == {"flux-0.11.6", "flux-0.12.1", "flux-0.14.25", "flux-0.16.5"}
    for recording in shipped.values():
        for name in ("flux-1547", "flux-rnn-tanh", "flux-lstm", "flux-gru"):
            assert recording.cases[name] == bridge.load_case(name).digest()
        assert {"framework", "version", "zygote", "julia", "blas"} <= set(recording.versions)
        assert not list(Path(recording.folder).glob("*.pkl"))
