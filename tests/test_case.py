"""Cases: what is refused and in which words, what survives saving, and that nothing changes afterwards."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import HEADS, random_case

from bridge import BadInputError, Case, Weights, load_case, shipped_cases
from bridge import case as case_module
from bridge.case import GATES, atomic, pack, unpack

# T = 3, B = 2, I = 2, H = 1.
VALID: dict[str, Any] = {
    "name": "valid",
    "source": "a test",
    "mode": "lstm",
    "dtype": "float64",
    "layers": 1,
    "bidirectional": False,
    "seq_lens": [1, 3],
    "head": [[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [6.0]]],
    "requested": ["x", "c0"],
    "x": [[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]], [[0.9, 1.0], [1.1, 1.2]]],
    "weight_ih": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]],
    "weight_hh": [[0.1], [0.2], [0.3], [0.4]],
    "bias_ih": [0.1, 0.2, 0.3, 0.4],
    "bias_hh": [0.5, 0.6, 0.7, 0.8],
    "h0": [[[0.1], [0.2]]],
    "c0": [[[0.3], [0.4]]],
    "head_hn": [[[0.5], [0.6]]],
    "head_cn": [[[0.7], [0.8]]],
}
WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
REMOVED = object()


def document(**changes: Any) -> dict[str, Any]:
    changed = copy.deepcopy(VALID) | changes
    return {key: value for key, value in changed.items() if value is not REMOVED}


def put(key: str, *indices: int, value: Any) -> dict[str, Any]:
    """The change that puts a value deep into one array."""
    array = copy.deepcopy(VALID[key])
    inner = array
    for index in indices[:-1]:
        inner = inner[index]
    inner[indices[-1]] = value
    return {key: array}


def cell(**changes: Any) -> dict[str, Any]:
    return {key: VALID[key] for key in WEIGHTS} | changes


def no_weights(**changes: Any) -> dict[str, Any]:
    return dict.fromkeys(WEIGHTS, REMOVED) | changes


def refusal(path: Path) -> BadInputError:
    """The refusal of a file: it must be one line that names the file."""
    with pytest.raises(BadInputError) as caught:
        load_case(path)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert len(line) < 600
    assert line.startswith(str(path))
    assert ": expected " in line
    assert ", found " in line
    return caught.value


def load_or_refusal(path: Path) -> Case | BadInputError:
    try:
        return load_case(path)
    except BadInputError as error:
        return error


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(content: Any) -> Path:
        path = tmp_path / "case.json"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(json.dumps(content))
        return path

    return write


def test_the_valid_document_loads(written: Callable[..., Path]) -> None:
    case = load_case(written(VALID))
    assert (case.seq_len, case.batch, case.input_size, case.hidden_size) == (3, 2, 2, 1)
    assert (case.layers, case.directions, case.gates) == (1, 1, 4)
    assert (case.seq_lens, case.requested) == ((1, 3), ("x", "c0"))
    assert case.quantities == ("y", "dx", "dc0")
    assert np.array_equal(case.params[0][0].weight_ih, VALID["weight_ih"])


CORRUPTIONS: list[tuple[dict[str, Any], str, str, str]] = [
    # the change, the key that must be named, what must be expected, what must be found
    *(({key: REMOVED}, key, "this key", "none") for key in ("name", "mode", "dtype", "layers", "bidirectional")),
    *(({key: REMOVED}, key, "this key", "none") for key in ("requested", "x", "h0", *WEIGHTS)),
    ({"wieght": 1}, "", "keys out of name, mode", "the unknown key 'wieght'"),
    ({"dropout": 0.5}, "dropout", "none (dropout above 0 is not covered, see docs/limits.md)", "this key"),
    ({"proj_size": 2}, "proj_size", "none (a projection of the hidden state is not covered, see", "this key"),
    ({"projection_size": 2}, "projection_size", "none (a projection of the hidden state is not", "this key"),
    ({"lengths": [1]}, "lengths", "none (a batch of sequences of several lengths is not", "this key"),
    ({"sequence_length": 1}, "sequence_length", "none (a batch of sequences of several lengths", "this key"),
    ({"device": "gpu"}, "device", "none (a GPU is not covered, see docs/limits.md)", "this key"),
    ({"ctx": "gpu(0)"}, "ctx", "none (a GPU is not covered, see docs/limits.md)", "this key"),
    ({"two\nlines \x1b": 1}, "", "keys out of", "'two\\nlines \\x1b'"),
    (put("x", 1, 1, value=[0.7]), "x[1][1]", "2 entries", "1 (ragged)"),
    (put("x", 1, value=[[0.5, 0.6]]), "x[1]", "2 entries", "1 (ragged)"),
    (put("weight_ih", 3, value=[]), "weight_ih[3]", "2 entries", "0 (ragged)"),
    (put("x", 0, 1, 0, value="0.3"), "x[0][1][0]", "a number", "str"),
    (put("x", 0, 1, 0, value=True), "x[0][1][0]", "a number", "bool"),
    (put("x", 0, 1, 0, value=None), "x[0][1][0]", "a number", "null"),
    (put("x", 0, 1, 0, value=[1.0]), "x[0][1][0]", "a number", "array"),
    (put("x", 0, 1, value=1.0), "x[0][1]", "a list", "float"),
    (put("bias_ih", 1, value={}), "bias_ih[1]", "a number", "object"),
    ({"x": 1.5}, "x", "an array or {npz, key}", "float"),
    ({"x": None}, "x", "an array or {npz, key}", "null"),
    ({"x": {"npz": "a.npz"}}, "x.key", "this key", "none"),
    ({"x": {"npz": "a.npz", "key": "x", "z": 1}}, "x", "keys out of npz, key", "'z'"),
    ({"x": {"npz": 1, "key": "x"}}, "x.npz", "text", "int"),
    ({"x": []}, "x", "shape (T, B, I)", "shape (0,)"),
    ({"x": [[], []]}, "x", "shape (T, B, I)", "shape (2, 0)"),
    ({"x": [[[], []]]}, "x", "I of at least 1", "shape (1, 2, 0)"),
    ({"weight_ih": [[0.1, 0.2, 0.3]] * 4}, "weight_ih", "shape (4, 2) (G*H, I)", "shape (4, 3)"),
    ({"weight_ih": [[0.1, 0.2]] * 3}, "weight_ih", "shape (4, 2) (G*H, I)", "shape (3, 2)"),
    ({"weight_hh": [[0.1, 0.2]] * 4}, "weight_ih", "shape (8, 2)", "shape (4, 2)"),
    ({"weight_hh": [[0.1]] * 3}, "weight_hh", "shape (4, 1) (G*H, H)", "shape (3, 1)"),
    ({"weight_hh": [[]]}, "weight_hh", "at least one hidden unit", "shape (1, 0)"),
    ({"bias_ih": [0.1]}, "bias_ih", "shape (4,) (G*H)", "shape (1,)"),
    ({"bias_hh": [0.1] * 5}, "bias_hh", "shape (4,) (G*H)", "shape (5,)"),
    ({"h0": [[[0.1]]]}, "h0", "shape (1, 2, 1) (layers*D, B, H)", "shape (1, 1, 1)"),
    ({"c0": [[[0.1], [0.1]]] * 2}, "c0", "shape (1, 2, 1) (layers*D, B, H)", "shape (2, 2, 1)"),
    ({"head": [[[1.0], [2.0]]]}, "head", "shape (3, 2, 1) (T, B, D*H)", "shape (1, 2, 1)"),
    ({"head": "first"}, "head", "'ones', 'last' or an array of shape (3, 2, 1)", "'first'"),
    ({"head": 3}, "head", "'ones', 'last', an array or {npz, key}", "int"),
    ({"head_hn": [[[1.0, 2.0]] * 2]}, "head_hn", "shape (1, 2, 1)", "shape (1, 2, 2)"),
    ({"head_cn": []}, "head_cn", "shape (1, 2, 1)", "shape (0,)"),
    ({"c0": REMOVED}, "c0", "an array of shape (1, 2, 1) (an LSTM has a cell state)", "none"),
    ({"mode": "gru"}, "weight_ih", "shape (3, 2)", "shape (4, 2)"),
    ({"mode": "LSTM"}, "mode", "one of rnn_tanh, rnn_relu, rnn_identity, lstm, gru", "'LSTM'"),
    ({"mode": "m" * 10_000}, "mode", "one of rnn_tanh", "mmm"),
    ({"dtype": "float16"}, "dtype", "one of float32, float64", "'float16'"),
    ({"dtype": None}, "dtype", "text", "null"),
    ({"dtype": "float32"} | put("x", 2, 1, 0, value=1e39), "x", "finite float32 numbers", "1e+39 at [2, 1, 0]"),
    ({"seq_lens": [4]}, "seq_lens", "whole numbers from 1 to 3", "4"),
    ({"seq_lens": [0]}, "seq_lens", "whole numbers from 1 to 3", "0"),
    ({"seq_lens": [-1]}, "seq_lens", "whole numbers from 1 to 3", "-1"),
    ({"seq_lens": [2, 2]}, "seq_lens", "each length once", "2 more than once"),
    ({"seq_lens": [1.5]}, "seq_lens[0]", "a whole number", "float"),
    ({"seq_lens": [True]}, "seq_lens[0]", "a whole number", "bool"),
    ({"seq_lens": 3}, "seq_lens", "a list", "int"),
    ({"requested": []}, "requested", "at least one of x, params, h0, c0", "an empty list"),
    ({"requested": ["x", "weights"]}, "requested", "names out of x, params, h0, c0", "'weights'"),
    ({"requested": "x"}, "requested", "a list", "str"),
    ({"requested": [1]}, "requested[0]", "text", "int"),
    ({"name": ""}, "name", "text fit for a file name", "''"),
    ({"name": "../up"}, "name", "text fit for a file name", "'../up'"),
    ({"name": "a\\b"}, "name", "text fit for a file name", "b'"),
    ({"name": ".hidden"}, "name", "text fit for a file name", "'.hidden'"),
    ({"name": "-option"}, "name", "text fit for a file name", "'-option'"),
    ({"name": " padded "}, "name", "text fit for a file name", "' padded '"),
    ({"name": "two\nlines"}, "name", "text fit for a file name", "'two\\nlines'"),
    ({"name": "\x1b[31mred"}, "name", "text fit for a file name", "'\\x1b[31mred'"),
    ({"name": "n" * 101}, "name", "text fit for a file name", "nnn"),
    ({"name": "\u00e9" * 101}, "name", "text fit for a file name", "\u00e9"),
    ({"name": 7}, "name", "text", "int"),
    ({"source": 7}, "source", "text", "int"),
    ({"layers": "1"}, "layers", "a whole number", "str"),
    ({"layers": True}, "layers", "a whole number", "bool"),
    ({"layers": 10**30}, "layers", "1, the layers that have weights", "1000"),
    ({"layers": 2}, "layers", "1, the layers that have weights", "2"),
    ({"bidirectional": 1}, "bidirectional", "true or false", "int"),
    ({"bidirectional": True}, "params[0]", "2 (bidirectional is true) directions", "1"),
    ({"params": [[cell()]]}, "weight_ih", "weights either in params or at the top", "both"),
    (no_weights(), "weight_ih", "this key (or params)", "none"),
    (no_weights(layers=2), "params", "this key", "none"),
    (no_weights(params=[]), "layers", "0, the layers that have weights", "1"),
    (no_weights(params=[[]]), "params[0]", "1 (bidirectional is false) directions", "0"),
    (no_weights(params=[[cell(), cell()]]), "params[0]", "1 (bidirectional is false) directions", "2"),
    (no_weights(params=[[cell()], [cell()]]), "layers", "2, the layers that have weights", "1"),
    (no_weights(params=[[{"weight_ih": [[0.1]]}]]), "params[0][0].weight_hh", "this key", "none"),
    (no_weights(params=[[cell(bias=[1.0])]]), "params[0][0]", "keys out of weight_ih, weight_hh", "'bias'"),
    (no_weights(params=cell()), "params", "a list", "object"),
    (
        no_weights(params=[[cell()], [cell()]], layers=2),
        "params[1][0].weight_ih",
        "shape (4, 1) (G*H, D*H)",
        "shape (4, 2)",
    ),
    (
        no_weights(params=[[cell(), cell(weight_hh=[[0.1, 0.2]] * 4)]], bidirectional=True),
        "params[0][1].weight_hh",
        "shape (4, 1)",
        "shape (4, 2)",
    ),
]


@pytest.mark.parametrize(("change", "key", "expected", "found"), CORRUPTIONS)
def test_a_wrong_document_gets_one_line_with_file_key_expected_and_found(
    change: dict[str, Any], key: str, expected: str, found: str, written: Callable[..., Path]
) -> None:
    error = refusal(written(document(**change)))
    assert error.key == key
    assert expected in error.expected
    assert found in error.found


@pytest.mark.parametrize("key", ["c0", "head_cn"])
def test_a_cell_state_outside_an_lstm_is_refused(key: str, written: Callable[..., Path]) -> None:
    plain = {k: [row[:] if isinstance(row, list) else row for row in VALID[k][:1]] for k in WEIGHTS}
    changes: dict[str, Any] = {"mode": "rnn_tanh", "requested": ["x"], "c0": REMOVED, "head_cn": REMOVED} | plain
    load_case(written(document(**changes)))
    error = refusal(written(document(**(changes | {key: VALID[key]}))))
    assert error.key == key
    assert "no such key for mode rnn_tanh" in error.expected
    error = refusal(written(document(**(changes | {"requested": ["x", "c0"]}))))
    assert (error.key, error.found) == ("requested", "'c0'")


RAW: list[tuple[bytes, str, str, str]] = [
    (b"", "", "a case as JSON", "an empty file"),
    (b" \n\t", "", "a case as JSON", "an empty file"),
    (json.dumps(VALID).encode()[:-40], "", "a case as JSON", "a truncated file"),
    (json.dumps(VALID).encode() + b"{}", "line 1", "JSON", "trailing characters"),
    (b'{\n"name": "a",\n"mode": lstm}', "line 3", "JSON", "invalid character"),
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "line 1", "JSON", "invalid character"),
    (b"PK\x03\x04" + bytes(range(256)), "line 1", "JSON", "invalid character"),
    (bytes(1000), "line 1", "JSON", "invalid character"),
    (b'{"name": "\xff\xfe"}', "", "a case as JSON", "UTF-8"),
    (json.dumps(VALID).encode("utf-16"), "line 1", "JSON", "invalid character"),
    (pickle.dumps(VALID), "line 1", "JSON", "invalid character"),
    (b"[]", "", "an object in braces", "array"),
    (b"null", "", "an object in braces", "null"),
    (b'"mxnet-21143"', "", "an object in braces", "str"),
    (b'{"params": ' + b"[" * 200_000, "params[0][0]", "an object in braces", "array"),
    (b'{"unknown": ' + b"[" * 200_000, "", "keys out of", "'unknown'"),
    (b'{"name": "\\ud800"}', "", "a case as JSON", "truncated"),
    *(
        (
            b'{"name": "a",\n"x": [[[0.5, %s]]]}' % number,
            "line 2",
            "finite numbers",
            f"{number.decode()}, which is not JSON",
        )
        for number in (b"NaN", b"-NaN", b"nan", b"Infinity", b"-Infinity", b"inf")
    ),
    (b'{"x": [[[1e999]]]}', "x[0][0][0]", "a finite number", "one too large to hold"),
    (b'{"x": [[[-1%s]]]}' % (b"0" * 5000), "x[0][0][0]", "a finite number", "one too large to hold"),
    (b'{"layers": 1%s}' % (b"0" * 5000), "layers", "a finite number", "one too large to hold"),
    (b'{"source": "a nan within"\n"x": 1}', "line 2", "JSON", "expected ','"),
]


@pytest.mark.parametrize(("data", "key", "expected", "found"), RAW)
def test_what_is_not_json_gets_one_line(
    data: bytes, key: str, expected: str, found: str, written: Callable[..., Path]
) -> None:
    error = refusal(written(data))
    assert error.key == key
    assert expected in error.expected
    assert found in error.found


def test_a_huge_file_is_not_read(written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_module, "MAX_FILE_BYTES", 100)
    error = refusal(written(VALID))
    assert "at most 100 bytes" in error.expected
    assert error.found == f"{len(json.dumps(VALID))} bytes"


@pytest.mark.parametrize(
    ("name", "found"),
    [("no-such-case", "no such file"), ("", "no such file"), ("a" * 5000, "no such file"), ("a\0b", "no such file"),
     ("/dev/null/x", "no such file"), (".", "a folder"), ("/dev/null", "no such file")],
)  # fmt: skip
def test_what_is_no_file_gets_one_line_with_the_shipped_names(name: str, found: str) -> None:
    with pytest.raises(BadInputError, match=f"mxnet-21143.*, found {found}$"):
        load_case(name)


# -- npz ---------------------------------------------------------------------------------------------------------


def npy(array: Any, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), allow_pickle=allow_pickle)
    return buffer.getvalue()


def archive(path: Path, compression: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for key, data in members.items():
            file.writestr(f"{key}.npy", data)
    return path


OUTSIDE = {"x": {"npz": "arrays.npz", "key": "x"}}
X = np.array(VALID["x"])
CLAIM = npy(X).replace(b"(3, 2, 2), }", b"(3000000000000, 2, 2), }")


def test_arrays_may_lie_in_an_npz_beside_the_file(written: Callable[..., Path], tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "arrays.npz", x=np.asfortranarray(X), c0=np.array(VALID["c0"], ">f4"))
    case = load_case(written(document(**OUTSIDE, c0={"npz": "arrays.npz", "key": "c0"})))
    assert np.array_equal(case.x, X)
    assert case.x.dtype == case.c0.dtype == np.dtype("float64")


@pytest.mark.parametrize(
    ("members", "expected", "found"),
    [
        ({"y": npy(X)}, "the array 'x' in arrays.npz", "the arrays ['y']"),
        ({}, "the array 'x' in arrays.npz", "the arrays none"),
        ({"x": npy(np.array([{}, 1], object), allow_pickle=True)}, "an array of numbers", "pickled objects"),
        ({"x": pickle.dumps(VALID)}, "an array of numbers", "magic string"),
        ({"x": npy(X)[:-5]}, "an array of numbers", "bytes of 96"),
        ({"x": npy(X)[:40]}, "an array of numbers", "array header"),
        ({"x": b""}, "an array of numbers", "magic string"),
        ({"x": CLAIM}, "an array of numbers", "a header of shape (3000000000000, 2, 2)"),
        ({"x": npy(X).replace(b"'<f8'", b"'<q8'")}, "an array of numbers", "'<q8'"),
        ({"x": npy(X.astype(complex))}, "an array of numbers", "complex128"),
        ({"x": npy(X.astype(str))}, "an array of numbers", "<U32"),
        ({"x": npy(X > 0.5)}, "an array of numbers", "bool"),
        ({"x": npy(np.zeros(2, [("a", float)]))}, "an array of numbers", "[('a', '<f8')]"),
        ({"x": npy(X[0])}, "shape (T, B, I)", "shape (2, 2)"),
        ({"x": npy(X[:0])}, "T of at least 1", "shape (0, 2, 2)"),
        ({"x": npy(X[:, :0])}, "B of at least 1", "shape (3, 0, 2)"),
        ({"x": npy(np.where(X == 0.6, np.nan, X))}, "finite float64 numbers", "nan at [1, 0, 1]"),
        ({"x": npy(np.where(X == 0.6, -np.inf, X))}, "finite float64 numbers", "-inf at [1, 0, 1]"),
    ],
)
def test_a_wrong_npz_gets_one_line(
    members: dict[str, bytes], expected: str, found: str, written: Callable[..., Path], tmp_path: Path
) -> None:
    archive(tmp_path / "arrays.npz", **members)
    error = refusal(written(document(**OUTSIDE)))
    assert error.key == "x"
    assert expected in error.expected
    assert found in error.found


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_or_truncated_npz_gets_one_line(
    compression: int, written: Callable[..., Path], tmp_path: Path
) -> None:
    path = written(document(**OUTSIDE))
    whole = archive(tmp_path / "arrays.npz", compression, x=npy(X)).read_bytes()
    load_case(path)
    for cut in range(0, len(whole), 7):
        (tmp_path / "arrays.npz").write_bytes(whole[:cut])
        assert refusal(path).key == "x"
    rng = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=3):
            damaged[place] = rng.integers(256)
        (tmp_path / "arrays.npz").write_bytes(damaged)
        outcome = load_or_refusal(path)
        assert isinstance(outcome, Case) or outcome.key == "x"


def test_an_encrypted_npz_gets_one_line(written: Callable[..., Path], tmp_path: Path) -> None:
    data = bytearray(archive(tmp_path / "arrays.npz", x=npy(X)).read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    (tmp_path / "arrays.npz").write_bytes(data)
    assert "encrypted" in refusal(written(document(**OUTSIDE))).found


def test_a_missing_npz_is_named(written: Callable[..., Path], tmp_path: Path) -> None:
    error = refusal(written(document(**OUTSIDE)))
    assert (error.key, error.found) == ("x", "no such file")
    assert "arrays.npz" in error.expected
    (tmp_path / "arrays.npz").mkdir()
    assert refusal(written(document(**OUTSIDE))).found == "no such file"


@pytest.mark.parametrize(
    "name", ["../arrays.npz", "/etc/passwd", "", ".", "..", "sub/arrays.npz", "a\0.npz", "a\n.npz"]
)
def test_an_npz_elsewhere_is_refused(name: str, written: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    archive(tmp_path / "sub" / "arrays.npz", x=npy(X))
    error = refusal(written(document(x={"npz": name, "key": "x"})))
    assert error.key == "x"
    assert error.expected == "an .npz file beside the case file"


def test_a_huge_npz_array_is_not_read(
    written: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path / "arrays.npz", x=npy(X))
    monkeypatch.setattr(case_module, "MAX_ARRAY_BYTES", 100)
    assert "at most 100 bytes" in refusal(written(document(**OUTSIDE))).expected


def test_nothing_is_ever_unpickled(written: Callable[..., Path], tmp_path: Path) -> None:
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (trap,))

    archive(tmp_path / "arrays.npz", x=npy(np.array([Trap()], object), allow_pickle=True))
    refusal(written(document(**OUTSIDE)))
    refusal(written(pickle.dumps(Trap())))
    assert not trap.exists()


# -- fuzz --------------------------------------------------------------------------------------------------------

TOKENS = (
    *b'NaN - 1e999 null true [] {} " \0 \xff -0 1e-400 99999999999999999999 , ] } \n "\\ud800" "\\u0000"'.split(b" "),
    b"[" * 50,
    b'{"npz": "arrays.npz", "key": "x"}',
)


def mutated(rng: np.random.Generator) -> bytes:
    data = json.dumps(document(**(OUTSIDE if rng.random() < 0.2 else {}))).encode()
    for _ in range(rng.integers(1, 5)):
        start = int(rng.integers(len(data) + 1))
        end = min(len(data), start + int(rng.choice([0, 1, 2, 5, 50])))
        kind = rng.integers(4)
        if kind == 0:
            data = data[:start] + rng.bytes(int(rng.integers(1, 4))) + data[end:]
        elif kind == 1:
            data = data[:start] + TOKENS[rng.integers(len(TOKENS))] + data[end:]
        elif kind == 2:
            data = data[:start] + data[start:end] * 2 + data[end:]
        else:
            other = int(rng.integers(len(data) + 1))
            data = data[:start] + data[other : other + end - start] + data[end:]
    return data


def test_mutated_files_raise_nothing_but_bad_input(written: Callable[..., Path], tmp_path: Path) -> None:
    archive(tmp_path / "arrays.npz", x=npy(X))
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(700):
        path = written(mutated(rng))
        outcome = load_or_refusal(path)
        if isinstance(outcome, BadInputError):
            refused += 1
            assert len(str(outcome).splitlines()) == 1
            assert str(outcome).startswith(str(path))
    assert refused > 500


# -- construction in Python --------------------------------------------------------------------------------------


def valid_case(**changes: Any) -> Case:
    fields: dict[str, Any] = {key: VALID[key] for key in VALID if key not in (*WEIGHTS, "layers", "bidirectional")}
    return Case(**(fields | {"params": [[cell()]]} | changes))


@pytest.mark.parametrize(
    ("changes", "key", "found"),
    [
        ({"x": [[[1.0], [2.0, 3.0]]]}, "x", "ragged rows"),
        ({"x": [[["a"]]]}, "x", "dtype <U1"),
        ({"x": object()}, "x", "dtype object"),
        ({"x": np.ones((1, 1, 1), complex)}, "x", "dtype complex128"),
        ({"x": np.ones((1, 1, 1), bool)}, "x", "dtype bool"),
        ({"x": [[[10**400]]]}, "x", "dtype object"),
        ({"x": [[[np.nan]]]}, "x", "nan at [0, 0, 0]"),
        ({"mode": np.ones(3)}, "mode", "array"),
        ({"dtype": np.dtype("float64")}, "dtype", "dtype('float64')"),
        ({"name": None}, "name", "NoneType"),
        ({"source": None}, "source", "NoneType"),
        ({"params": None}, "params", "NoneType"),
        ({"params": []}, "params", "a list of 0"),
        ({"params": [cell()]}, "params[0]", "the keys weight_ih"),
        ({"params": [[cell()] * 3]}, "params[0]", "a list of 3"),
        ({"params": [[{"weight_ih": 1}]]}, "params[0][0]", "the keys weight_ih"),
        ({"params": [[cell()], [cell(), cell()]]}, "params[1]", "2"),
        ({"requested": "x"}, "requested", "'x'"),
        ({"requested": None}, "requested", "NoneType"),
        ({"seq_lens": 2}, "seq_lens", "int"),
        ({"seq_lens": [2.0]}, "seq_lens", "2.0"),
        ({"seq_lens": [True]}, "seq_lens", "True"),
        ({"head": None}, "head", "dtype object"),
        ({"h0": None}, "h0", "dtype object"),
    ],
)  # fmt: skip
def test_wrong_arguments_get_one_line_with_the_case_and_the_key(changes: dict[str, Any], key: str, found: str) -> None:
    with pytest.raises(BadInputError) as caught:
        valid_case(**changes)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(f"case {changes.get('name', 'valid')!r}: ")
    assert caught.value.key == key
    assert found in caught.value.found


def test_fields_cannot_be_changed() -> None:
    case = valid_case()
    for field in dataclasses.fields(Case):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(case, field.name, None)


def test_arrays_are_read_only_and_not_the_callers() -> None:
    x, weight = np.array(VALID["x"]), np.array(VALID["weight_ih"])
    case = valid_case(x=x, params=[[cell(weight_ih=weight)]])
    digest = case.digest()
    x[:] = 9
    weight[:] = 9
    assert case.digest() == digest
    assert len(case.arrays()) == 10
    for array in case.arrays().values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(ValueError, match="read-only"):
        case.heads(2)[0][...] = 0


def test_the_digest_tells_every_number_and_option_and_no_name() -> None:
    case = valid_case()
    digests = {case.digest()}
    plain = case.to_plain()
    for key, array in case.arrays().items():
        for place in range(array.size):
            changed = array.copy()
            changed.flat[place] = np.nextafter(changed.flat[place], 9)
            digests.add(Case.from_plain(plain | {"arrays": plain["arrays"] | {key: pack(changed)}}).digest())
    numbers = 1 + sum(array.size for array in case.arrays().values())
    assert len(digests) == numbers
    options: list[dict[str, Any]] = [
        {"dtype": "float32"}, {"head": "ones"}, {"head": "last"}, {"head_hn": None}, {"head_cn": None},
        {"requested": ("x",)}, {"seq_lens": (1,)}, {"seq_lens": (3, 1)},
    ]  # fmt: skip
    digests |= {case.replace(**option).digest() for option in options}
    assert len(digests) == numbers + len(options)
    assert case.replace(name="other", source="elsewhere").digest() == case.digest()
    assert case.replace(requested=("c0", "x")).digest() == case.digest()


def test_the_digest_tells_modes_apart() -> None:
    rng = np.random.default_rng(0)
    case = random_case(rng, mode="rnn_tanh")
    assert len({case.replace(mode=mode).digest() for mode in ("rnn_tanh", "rnn_relu", "rnn_identity")}) == 3


def test_equal_cases_are_equal_and_hash_alike() -> None:
    assert valid_case() == valid_case()
    assert hash(valid_case()) == hash(valid_case())
    assert valid_case() != valid_case(name="other")
    assert valid_case() != valid_case(head="ones")
    assert valid_case() != "valid"
    assert repr(valid_case()) == "<Case valid: lstm, 1 layer, float64, T=3 B=2 I=2 H=1, asks for x c0>"


# -- heads -------------------------------------------------------------------------------------------------------


def test_a_prefix_uses_the_first_rows_of_given_heads() -> None:
    case = valid_case()
    head, head_hn, head_cn = case.heads(2)
    assert head.ravel().tolist() == [1, 2, 3, 4]
    assert np.array_equal(head_hn, VALID["head_hn"])
    assert np.array_equal(head_cn, VALID["head_cn"])
    assert np.array_equal(case.heads()[0], VALID["head"])


def test_last_reads_the_last_step_of_the_prefix() -> None:
    case = valid_case(head="last", dtype="float32")
    for length in (1, 2, 3):
        head = case.heads(length)[0]
        assert head.dtype == np.dtype("float32")
        assert head.ravel().tolist() == [0, 0] * (length - 1) + [1, 1]
    assert valid_case(head="ones").heads(2)[0].ravel().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("head", "row"), [(VALID["head"], [3, 4]), ("ones", [1, 1]), ("last", [1, 1])])
def test_a_loss_step_reads_that_output_alone_and_no_final_state(head: Any, row: list[int]) -> None:
    only, head_hn, head_cn = valid_case(head=head).heads(3, loss_step=1)
    assert only.ravel().tolist() == [0, 0, *row, 0, 0]
    assert head_hn is head_cn is None


@pytest.mark.parametrize(("seq_len", "loss_step"), [(0, None), (4, None), (-1, None), (2, 2), (None, 3), (None, -1)])
def test_lengths_and_steps_outside_are_refused(seq_len: int | None, loss_step: int | None) -> None:
    with pytest.raises(BadInputError, match=r"case 'valid': (seq_len|loss_step): expected . to ., found"):
        valid_case().heads(seq_len, loss_step)


# -- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "npz"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", list(GATES))
def test_saving_and_loading_keeps_every_bit(
    mode: str, dtype: str, inline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_module, "_INLINE_ELEMENTS", 10**9 if inline else 0)
    rng = np.random.default_rng(0)
    for layers, bidirectional, head in (
        (1, False, "ones"),
        (1, True, "last"),
        (3, False, "given"),
        (2, True, HEADS[-1]),
    ):
        case = random_case(rng, mode=mode, dtype=dtype, layers=layers, bidirectional=bidirectional, head=head, T=4, H=3,
                           seq_lens=(4, 2), source="quotes \" and \n lines, \u03c0")  # fmt: skip
        path = case.save(tmp_path / "folder" / "a.case.json")
        assert {file.name for file in path.parent.iterdir()} == {"a.case.json", *(() if inline else ("a.case.npz",))}
        assert load_case(path) == case
        assert Case.from_plain(case.to_plain()) == case
        for file in path.parent.iterdir():
            file.unlink()


def test_a_large_case_keeps_its_numbers_in_an_npz(tmp_path: Path) -> None:
    case = valid_case(x=np.ones((6000, 2, 2)), head="ones", seq_lens=())
    path = case.save(tmp_path / "large.json")
    assert path.stat().st_size < 5000
    assert load_case(path) == case


@settings(max_examples=150, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5), st.booleans())
def test_any_finite_number_survives(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[float], single: bool
) -> None:
    values = np.array(numbers) if single else np.array(numbers) / 3
    head = values.reshape(-1, 1, 1)
    one = np.ones((1, 1))
    case = Case(
        name="numbers", mode="rnn_tanh", x=np.ones((len(numbers), 1, 1)), params=[[Weights(one, one, one[0], one[0])]],
        h0=[[[-0.0]]], head=head, dtype="float32" if single else "float64",
    )  # fmt: skip
    read = load_case(case.save(tmp_path_factory.getbasetemp() / "numbers.json"))
    assert read.head.tobytes() == case.head.tobytes()
    assert read.h0.tobytes() == case.h0.tobytes()


def test_a_case_is_not_saved_under_the_name_of_an_npz(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"a\.npz: expected a path ending in \.json"):
        valid_case().save(tmp_path / "a.npz")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = valid_case().save(tmp_path / "a.json")
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(case_module.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        valid_case(name="other").save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_atomic_leaves_nothing_behind_when_the_block_fails(tmp_path: Path) -> None:
    def half() -> None:
        with atomic(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert not list(tmp_path.iterdir())


def test_packed_arrays_unpack_to_the_bit() -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    assert np.array_equal(unpack(pack(array)), array)
    assert unpack(pack(array)).dtype == array.dtype


# -- shipped cases -----------------------------------------------------------------------------------------------


def test_the_seed_cases_are_shipped_under_their_names() -> None:
    assert shipped_cases() == ("flux-1547", "flux-gru", "flux-lstm", "flux-rnn-tanh", "mxnet-21143")
    for name in shipped_cases():
        assert load_case(name).name == name
        assert load_case(name).source


def test_the_shipped_cases_hold_the_reports_numbers() -> None:
    case = load_case("mxnet-21143")
    assert (case.mode, case.dtype, case.requested, case.seq_lens) == ("rnn_tanh", "float32", ("x",), (1, 2, 3, 4, 5))
    assert case.x[4, 0].tolist() == np.float32([0.4236548, 0.6235637]).tolist()
    assert case.params[0][0].weight_ih[2].tolist() == np.float32([0.891773, 0.056712978]).tolist()
    assert case.params[0][0].bias_hh.tolist() == np.float32([0.071036056, 0.33739617, 0.087129295]).tolist()
    assert case.h0.ravel().tolist() == np.float32([0.6481719, 0.020218398, 0.36824155]).tolist()
    flux = load_case("flux-1547")
    assert (flux.mode, flux.dtype, flux.x.ravel().tolist()) == ("rnn_identity", "float64", [0.3, 2.5])
    assert [array.item() for array in flux.params[0][0]] == [0.5, 0.001, 0.85, 0.0]
