"""The matrix of versions: what its cells say, the order of versions, and the committed one."""

import io
from pathlib import Path

import pandas as pd
import pytest
from test_environments import gradbridge

import bridge
from bridge.backends.registry import BackendName, Sources, every_version, select
from bridge.config import added_environments
from bridge.matrix import FIXED, matrix

COMMITTED = Path(__file__).parent.parent / "results" / "matrix"
OLD = ("mxnet-1.9.1", "mxnet-native-1.8.0.post0")


def table(*rows):
    columns = ("case", "backend", "quantity", "verdict", "fault")
    frame = pd.DataFrame(rows, columns=columns)
    return matrix(frame, dict.fromkeys(frame["backend"]))


def test_versions_are_in_order_and_a_build_is_among_its_frameworks():
    lines = ["mxnet-2.0.0b1", "mxnet-1.10.0", "mxnet-native-1.8.0.post0", "mxnet-1.9.1", "flux-0.14.25", "mine"]
    found = table(*(("c", f"{line}/v", "dx", "disagrees", "f") for line in lines))
    assert list(found.columns) == [
        *FIXED, "mxnet-native-1.8.0.post0", "mxnet-1.9.1", "mxnet-1.10.0", "mxnet-2.0.0b1", "flux-0.14.25", "mine",
    ]  # fmt: skip
    assert found[["backend", "since", "until"]].to_numpy().tolist() == [
        ["mxnet/v", "mxnet-native-1.8.0.post0", "mxnet-2.0.0b1"],
        ["flux/v", "flux-0.14.25", "flux-0.14.25"],
        ["mine/v", "mine", "mine"],
    ]
    assert (found["flux-0.14.25"] == ["", "shows", ""]).all()  # empty where another framework's version is meant
    assert BackendName.parse("mxnet-native-1.8.0.post0/unrolled").framework == "mxnet"


@pytest.mark.parametrize(
    ("rows", "cell"),
    [
        ([("dx", "agrees", None), ("y", "agrees", None)], "does not show"),
        ([("dx", "disagrees", "f")], "shows"),
        ([("dx", "disagrees", "g")], "wrong otherwise"),
        ([("dx", "not repeatable", "not-repeatable")], "wrong otherwise"),
        ([("dx", "unsupported", None), ("y", "agrees", None)], "unsupported"),  # y says nothing of a fault in dx
        ([("dx", "unavailable", None)], "not run"),
        ([("dx", "crashed", None), ("y", "agrees", None)], "not run"),
        ([("dx", "timed out", None)], "not run"),
    ],
)
def test_a_cell_says_what_a_version_does_where_another_shows_the_fault(rows, cell):
    rows = [("c", "a-2/v", *row) for row in rows]
    elsewhere = ("d", "a-2/v", "dx", "agrees", None)  # a case on which nobody shows it says nothing either
    found = table(("c", "a-1/v", "dx", "disagrees", "f"), ("c", "a-3/v", "dx", "disagrees", "f"), *rows, elsewhere)
    row = found[found["fault"] == "f"].iloc[0]
    assert row[["since", "until", "cases", "a-2"]].tolist() == ["a-1", "a-3", "c", cell]


def test_a_variant_that_never_shows_it_has_a_row_and_one_that_a_version_lacks_was_not_run():
    found = table(("c", "a-1/v", "dx", "disagrees", "f"), ("c", "a-2/w", "dx", "agrees", None))
    assert found.to_numpy().tolist() == [
        ["f", "a/v", "c", "a-1", "a-1", "shows", "not run"],
        ["f", "a/w", "c", "", "", "not run", "does not show"],
    ]
    assert len(table(("c", "a-1/v", "dx", "agrees", None))) == 0


def test_every_version_adds_the_same_variants_only():
    sources = Sources(live=False)
    chosen = select(["flux-0.14.25/cell-for-explicit"], sources)
    names = [backend.name for backend in every_version(chosen, sources)]
    assert names[0] == "flux-0.14.25/cell-for-explicit"
    assert sorted(names) == [f"flux-{v}/cell-for-explicit" for v in ("0.11.6", "0.12.1", "0.14.25", "0.16.5")]


def test_recorded_flux_lines_side_by_side(tmp_path):
    done = gradbridge(
        "compare", "flux-1547", "--no-live", "--matrix", "--backend", "flux-0.16.5/closure-broadcast-explicit-struct",
        "--out", str(tmp_path),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = pd.read_csv(tmp_path / "matrix.csv", keep_default_na=False)
    assert set(found["backend"]) == {"flux/closure-broadcast-explicit-struct"}
    forward = found[found["fault"] == "forward-order"].iloc[0]
    assert forward[["since", "until"]].tolist() == ["flux-0.11.6", "flux-0.16.5"]  # FluxML/Flux.jl#1547: m.(xs)
    assert "flux, forward-order (on flux-1547)" in done.output


def test_the_committed_matrix_has_the_fault_in_every_native_kernel_and_in_no_other():
    found = pd.read_csv(COMMITTED / "matrix.csv", keep_default_na=False).set_index("backend")
    versions = ["mxnet-native-1.8.0.post0", "mxnet-1.9.1", "mxnet-2.0.0b1"]
    assert list(found.columns) == ["fault", "cases", "since", "until", *versions]
    assert set(found["fault"]) == {"recurrent-term-dropped"}
    for way in ("fused", "cached", "gluon"):
        assert found.loc[f"mxnet/{way}-native", ["since", "until"]].tolist() == [versions[0], versions[-1]]
        assert set(found.loc[f"mxnet/{way}-native", versions]) == {"shows"}
        assert found.loc[f"mxnet/{way}-onednn", versions].tolist() == ["unsupported", "does not show", "does not show"]
    assert set(found.loc["mxnet/unrolled", versions]) == {"does not show"}


# -- the real old wheels, where `gradbridge env` has brought them -------------------------------------------------


@pytest.fixture(scope="module", params=OLD)
def old(request, users_cache):
    if request.param in added_environments():
        return request.param
    spec = "==".join(request.param.rsplit("-", 1))
    return pytest.skip(f"{request.param} is not here: gradbridge env add {spec}")


@pytest.mark.live
def test_every_variant_of_an_old_mxnet_runs_every_shipped_case(old):
    summary = bridge.compare(backends=[f"{old}/*"]).summary
    assert set(summary["verdict"]) == {"agrees", "disagrees", "unsupported"}
    assert not summary.loc[summary["backend"] == f"{old}/unrolled", "verdict"].ne("agrees").any()
    wrong = summary[summary["verdict"] == "disagrees"]
    assert set(wrong["fault"]) == {"recurrent-term-dropped"}
    assert set(wrong["backend"]) == {f"{old}/{way}-native" for way in ("fused", "cached", "gluon")}
    refused = summary[(summary["verdict"] == "unsupported") & (summary["case"] == "mxnet-21143")]
    assert set(refused["backend"]) == (
        set() if old == "mxnet-1.9.1" else {f"{old}/{way}-onednn" for way in ("fused", "cached", "gluon")}
    )


@pytest.mark.live
def test_a_fresh_matrix_is_the_committed_one(users_cache, tmp_path):
    there = {BackendName.parse(backend.name).line for backend in select(["mxnet-*"])}
    if not {*OLD, "mxnet-2.0.0b1"} <= there:
        pytest.skip("not all of the matrix is here: make matrix")
    patterns = [f"{line}/*" for line in (*OLD, "mxnet-2.0.0b1")]
    fresh = bridge.compare("mxnet-21143", patterns).matrix
    committed = pd.read_csv(io.BytesIO((COMMITTED / "matrix.csv").read_bytes()), keep_default_na=False)
    key = ["fault", "backend"]
    pd.testing.assert_frame_equal(
        fresh.sort_values(key, ignore_index=True), committed.sort_values(key, ignore_index=True)
    )
