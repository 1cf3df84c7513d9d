"""The committed sample run: a fresh run equals it where it must, which is everywhere but in the last bits of values."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import require_mxnet

import bridge
from bridge.backends.registry import Sources

SEED = Path(__file__).parent.parent / "results" / "seed"
KEYS = {
    "gradients": ["case", "backend", "quantity", "seq_len", "timestep", "layer", "direction", "batch", "row", "col"],
    "timesteps": ["case", "backend", "quantity", "seq_len", "timestep"],
    "summary": ["case", "backend", "quantity"],
    "pairs": ["case", "quantity", "seq_len", "timestep", "backend_a", "backend_b"],
    "findings": ["case", "backend", "quantities", "fault", "condition", "workarounds", "others"],
}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    require_mxnet()
    folder = tmp_path_factory.mktemp("seed")
    bridge.compare(sources=Sources(live=False)).save(folder)
    return folder


def read(folder, name):
    return pd.read_csv(io.BytesIO((folder / f"{name}.csv").read_bytes()), float_precision="round_trip")


@pytest.mark.live
@pytest.mark.parametrize("name", KEYS)
def test_a_fresh_run_has_the_same_rows_and_verdicts(fresh, name):
    ours, committed = read(fresh, name), read(SEED, name)
    same = [*KEYS[name], *(["verdict"] if "verdict" in ours else [])]
    pd.testing.assert_frame_equal(ours[same], committed[same])


@pytest.mark.live
def test_a_fresh_run_has_the_same_values_up_to_the_last_bits_of_another_processor(fresh):
    ours, committed = read(fresh, "gradients"), read(SEED, "gradients")
    np.testing.assert_allclose(ours["reference"], committed["reference"], rtol=1e-11, atol=1e-13)
    scale = np.where(ours["case"].str.startswith("mxnet"), 3e-7, 1e-12)
    np.testing.assert_array_equal(ours["value"].isna(), committed["value"].isna())
    off = np.abs(ours["value"] - committed["value"]).fillna(0)
    assert (off <= scale * (1 + committed["value"].abs().fillna(0))).all()


def test_the_committed_run_shows_both_reports():
    summary = read(SEED, "summary").set_index(["case", "backend", "quantity"])
    assert summary.loc[("mxnet-21143", "mxnet-2.0.0b1/fused-native", "dx"), "fault"] == "recurrent-term-dropped"
    rows = read(SEED, "gradients")
    flux = rows[(rows["case"] == "flux-1547") & (rows["quantity"] == "dweight_ih")].set_index("backend")["value"]
    assert flux["flux-0.14.25/recur-broadcast-explicit"] == pytest.approx(2.8025, abs=1e-12)
    assert flux["flux-0.14.25/recur-broadcast-implicit"] == pytest.approx(2.8, abs=1e-12)
    assert flux["flux-0.14.25/recur-comprehension-explicit"] == pytest.approx(5.3003, abs=1e-12)
    assert flux["mxnet-2.0.0b1/unrolled"] == pytest.approx(2.8003, abs=1e-12)
