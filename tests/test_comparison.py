"""The tables: columns, indices, lossless floats, determinism, pairs."""

import io
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from random_cases import random_case
from test_workers import backend

import bridge
from bridge.backends.base import LiveBackend
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

    def fails(self, path, **_):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", fails)
    with pytest.raises(bridge.BadInputError, match="No space left"):
        comparison.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


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
