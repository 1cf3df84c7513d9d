"""The tables: columns, indices, lossless floats, determinism, pairs."""

import io
import itertools
import json
import math

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest
from random_cases import random_case
from test_workers import backend

import bridge
from bridge.answers import Answer, Reply, Task
from bridge.backends.base import LiveBackend
from bridge.comparison import Comparison
from bridge.report import tables
from bridge.report.saved import Saved
from bridge.tolerance import truth
from bridge.verdicts import Outcome, judge_reply
from bridge.workers import Launch


@pytest.fixture(scope="module")
def mixed():
    """Two cases of several layers and directions through two right backends."""
    cases = [
        random_case(np.random.default_rng(1), name="a", mode="lstm", layers=2, bidirectional=True, T=4, B=2, H=3, I=2),
        random_case(np.random.default_rng(2), name="b", mode="gru", layers=1, bidirectional=0, T=5, seq_lens=(2, 5)),
    ]
    cases = [c.replace(requested=("x", "params", "h0") + (("c0",) if c.mode == "lstm" else ())) for c in cases]
    return cases, bridge.compare(cases, [backend("none"), backend("raises")], loss_steps=True)


def test_columns_are_the_documented_ones_in_order(mixed):
    _, comparison = mixed
    assert ",".join(comparison.gradients.columns) == (
        "case,backend,quantity,seq_len,loss_step,timestep,layer,direction,batch,row,col,"
        "value,reference,abs_err,rel_err,ulps,tolerance,verdict"
    )
    assert ",".join(comparison.timesteps.columns) == (
        "case,backend,quantity,seq_len,loss_step,timestep,n,n_disagree,max_abs_err,max_rel_err,max_ulps,verdict"
    )


def test_one_row_per_scalar_and_its_indices_find_the_value(mixed):
    cases, comparison = mixed
    table = comparison.gradients
    case = cases[0]
    truth = bridge.reference.gradients(case)
    rows = table[(table["case"] == "a") & (table["backend"] == "faulty-1/none") & table["loss_step"].isna()]
    sizes = {"y": case.seq_len * 2 * 6, "dx": case.seq_len * 2 * 2, "dh0": 4 * 2 * 3, "dc0": 4 * 2 * 3}
    sizes |= {"dweight_ih": 2 * 12 * (2 + 6), "dweight_hh": 4 * 12 * 3, "dbias_ih": 4 * 12, "dbias_hh": 4 * 12}
    assert rows["quantity"].value_counts().to_dict() == sizes
    for row in rows.sample(60, random_state=0).itertuples():
        value = truth[row.quantity]
        if row.quantity in ("y", "dx"):
            expected = value[row.timestep, row.batch, row.row]
        elif row.quantity in ("dh0", "dc0"):
            expected = value[row.layer * 2 + row.direction, row.batch, row.row]
        else:
            block = value[row.layer][row.direction]
            expected = block[row.row] if row.quantity.startswith("dbias") else block[row.row, row.col]
        assert row.reference == expected
        assert row.verdict == "agrees"


def test_every_row_of_every_table_has_a_verdict_and_a_reason_beside_all_but_agrees(mixed):
    _, comparison = mixed
    for table in (comparison.gradients, comparison.timesteps, comparison.summary, comparison.pairs):
        assert table["verdict"].notna().all()
    summary = comparison.summary
    assert (summary["reason"][summary["verdict"] != "agrees"] != "").all()


def test_loss_steps_and_prefixes_have_rows_of_their_own(mixed):
    _, comparison = mixed
    rows = comparison.timesteps
    b = rows[(rows["case"] == "b") & (rows["backend"] == "faulty-1/none") & (rows["quantity"] == "dx")]
    assert set(map(tuple, b[["seq_len", "loss_step"]].fillna(-1).drop_duplicates().to_numpy().tolist())) == {
        (2, -1), (2, 0), (2, 1), (5, -1), (5, 0), (5, 1), (5, 2), (5, 3), (5, 4),
    }  # fmt: skip


def test_pairs_hold_every_two_backends_with_values_and_say_by_how_much(mixed):
    cases, _ = mixed
    pairs = bridge.compare(cases[1], [renamed("none", "one"), renamed("none", "two")]).pairs
    assert set(pairs["backend_a"] + " " + pairs["backend_b"]) == {"faulty-1/one faulty-1/two"}
    assert (pairs["max_abs_diff"] == 0).all()
    assert set(pairs["quantity"]) == {"y", "dx", "dweight_ih", "dweight_hh", "dbias_ih", "dbias_hh", "dh0"}


def renamed(how, name):
    one = backend(how)
    return LiveBackend(f"faulty-1/{name}", "", one.launch)


def test_files_read_back_to_the_same_bits_and_a_second_run_writes_the_same_bytes(mixed, tmp_path):
    cases, comparison = mixed
    comparison.save(tmp_path / "1")
    bridge.compare(cases, [backend("none"), backend("raises")], loss_steps=True).save(tmp_path / "2")
    for name in ("gradients", "timesteps", "summary", "pairs", "backends"):
        first, second = ((tmp_path / run / f"{name}.csv").read_bytes() for run in "12")
        assert first == second
    back = pd.read_csv(io.BytesIO((tmp_path / "1" / "gradients.csv").read_bytes()), float_precision="round_trip")
    for column in ("value", "reference", "abs_err", "tolerance"):
        assert (back[column].to_numpy() == comparison.gradients[column].to_numpy()).all()
    manifest = json.loads((tmp_path / "1" / "run.json").read_text())
    assert manifest["cases"]["a"]["digest"] == cases[0].digest()
    assert manifest["noise_floor"] == {"samples": 16, "seed": 0}
    assert not list((tmp_path / "1").glob(".*"))


def test_a_failed_write_leaves_the_old_file_whole(mixed, tmp_path, monkeypatch):
    _, comparison = mixed
    comparison.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def half(self, path, **_):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    def fails(*_):
        raise OSError(28, "No space left on device")

    for place, name, failing in ((pd.DataFrame, "to_csv", half), (pyarrow.csv, "write_csv", fails)):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, failing)
            with pytest.raises(bridge.BadInputError, match="No space left"):
                comparison.save(tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


SPECIAL_VALUES = [-0.0, 5e-324, 1e-5, 1 / 3, 1e16, 1.7976931348623157e308, np.inf, -np.inf, np.nan, 3.0]


def special_outcomes(name="mine", backends=("one/a", "two/b")):
    """Values that a writer may spoil, in a comparison of backends that gave them."""
    case = bridge.load_case("flux-lstm").replace(name=name)
    known = truth(Task(case, case.seq_len))
    answers = {quantity: Answer(values) for quantity, values in known.reference.items()}
    dx = known.reference["dx"].copy()
    dx.flat[: len(SPECIAL_VALUES)] = SPECIAL_VALUES
    answers["dx"] = Answer(dx)
    return [Outcome(backend, known.task, judge_reply(Reply(answers), known), known) for backend in backends]


@pytest.mark.parametrize("rows", [7, 2**17])
def test_tables_written_in_chunks_of_any_size_hold_the_bits_of_the_frame(tmp_path, monkeypatch, rows):
    outcomes = special_outcomes()
    frames = {"gradients": tables.gradients(outcomes), "pairs": tables.pairs(outcomes)}
    monkeypatch.setattr(tables, "ROWS", rows)
    Comparison([outcomes[0].task.case], outcomes, [], {}).save(tmp_path, skip=["report"])
    for name, frame in frames.items():
        floats = [column for column in frame if frame[column].dtype == np.float64]
        types = dict.fromkeys(floats, np.float64)
        path = tmp_path / f"{name}.csv"
        back = pd.read_csv(io.BytesIO(path.read_bytes()), float_precision="round_trip", dtype=types)
        for column in frame:
            if column in floats:
                assert back[column].to_numpy().tobytes() == frame[column].to_numpy().tobytes(), column
            else:
                missing = frame[column].isna()
                assert (back[column].isna() == missing).all()
                assert (back[column][~missing] == frame[column][~missing].astype(object)).all()


def test_parquet_holds_what_csv_holds_and_takes_its_place(tmp_path):
    outcomes = special_outcomes()
    comparison = Comparison([outcomes[0].task.case], outcomes, [], {"kind": "compare"})
    comparison.save(tmp_path)
    page, csv = (tmp_path / "report.html").read_bytes(), Saved(tmp_path).table("gradients")
    comparison.save(tmp_path, format="parquet")
    assert not (tmp_path / "gradients.csv").exists()
    assert not (tmp_path / "pairs.csv").exists()
    assert (tmp_path / "report.html").read_bytes() == page
    frame = Saved(tmp_path).table("gradients")
    pd.testing.assert_frame_equal(frame, csv, check_exact=True)
    assert frame["value"].to_numpy().tobytes() == comparison.gradients["value"].to_numpy().tobytes()
    first = (tmp_path / "gradients.parquet").read_bytes()
    comparison.save(tmp_path, format="parquet")
    assert (tmp_path / "gradients.parquet").read_bytes() == first
    comparison.save(tmp_path)
    assert not (tmp_path / "gradients.parquet").exists()
    with pytest.raises(bridge.BadInputError, match="xlsx"):
        comparison.save(tmp_path, format="xlsx")


def test_a_broken_parquet_file_is_refused_in_a_line(tmp_path):
    outcomes = special_outcomes()
    Comparison([outcomes[0].task.case], outcomes, [], {"kind": "compare"}).save(tmp_path, format="parquet")
    (tmp_path / "gradients.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(bridge.BadInputError, match=r"gradients\.parquet"):
        Saved(tmp_path).table("gradients")


def test_names_with_commas_and_quotes_are_read_back(tmp_path):
    outcomes = special_outcomes('a, "b"', ("one,1/a", 'two/"b"'))
    comparison = Comparison([outcomes[0].task.case], outcomes, [], {"kind": "compare"})
    comparison.save(tmp_path)
    back = pd.read_csv(tmp_path / "pairs.csv")
    assert set(back["case"]) == {'a, "b"'}
    assert (back[["backend_a", "backend_b"]].drop_duplicates().to_numpy() == [["one,1/a", 'two/"b"']]).all()
    assert set(Saved(tmp_path).table("gradients")["backend"]) == {"one,1/a", 'two/"b"'}


def test_pairs_tell_differences_by_step_what_is_missing_and_what_is_summed():
    case = bridge.load_case("mxnet-21143").replace(seq_lens=(3,), requested=("x", "params", "h0"))
    known = truth(Task(case, 3))
    right = dict(known.reference)

    def outcome(name, **changed):
        answers = {quantity: Answer(values) for quantity, values in right.items()} | changed
        return Outcome(name, known.task, judge_reply(Reply(answers), known), known)

    off = right["dx"].copy()
    off[1, 0] += [3.0, 4.0]
    off[2, 0, 0] = np.nan
    summed = Answer(right["dh0"].sum(axis=1, keepdims=True), batch_summed=True)
    pairs = tables.pairs([outcome("a"), outcome("b", dx=Answer(off)), outcome("c", dh0=summed)])
    dx = pairs[pairs["quantity"] == "dx"].set_index(["backend_a", "backend_b", "timestep"])
    assert dx.loc[("a", "b", 1), ["n", "max_abs_diff", "verdict"]].tolist() == [2, 4.0, "disagrees"]
    assert dx.loc[("a", "b", 1), "rms_diff"] == pytest.approx(math.sqrt(12.5))
    assert dx.loc[("a", "b", 2), ["n", "max_abs_diff", "verdict"]].tolist() == [1, 0.0, "agrees"]
    assert dx.loc[("a", "c", 1), ["n", "max_abs_diff", "verdict"]].tolist() == [2, 0.0, "agrees"]
    states = pairs[pairs["quantity"] == "dh0"]
    assert states[["backend_a", "backend_b"]].to_numpy().tolist() == [["a", "b"]]
    assert set(pairs[pairs["quantity"] == "dweight_ih"]["n"]) == {right["dweight_ih"][0][0].size}


def test_summary_says_how_a_wrong_gradient_lies_to_the_true_one():
    case = bridge.load_case("flux-rnn-tanh").replace(name="double-dx")
    spec = LiveBackend("faulty-1/double", "", Launch("doubling_backend", path=backend("none").launch.path))
    row = bridge.compare(case, [spec]).summary.set_index("quantity").loc["dx"]
    assert row["verdict"] == "disagrees"
    assert row["cosine"] == pytest.approx(1)
    assert row["norm_ratio"] == pytest.approx(2)
    assert row["n_disagree"] == row["n"] == 20


def test_bad_arguments_are_refused_in_one_line():
    for call, words in (
        (lambda: bridge.compare([]), "at least one case"),
        (lambda: bridge.compare("no-such-case"), "no-such-case"),
        (lambda: bridge.compare("flux-1547", ["no-such-backend"]), "no-such-backend"),
        (lambda: bridge.compare(["flux-1547", "flux-1547"]), "twice"),
    ):
        with pytest.raises(bridge.BadInputError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_every_pair_of_tables_names_the_same_backends(mixed):
    _, comparison = mixed
    names = [set(table["backend"]) for table in (comparison.summary, comparison.backends)]
    assert all(one == other for one, other in itertools.pairwise(names))
