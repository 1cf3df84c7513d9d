"""Tidy pandas tables out of judged outcomes. Indices are 0-based; empty where they do not apply."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from bridge.arithmetic import Array
from bridge.case import QUANTITY_ORDER
from bridge.verdicts import AGREES, DISAGREES, NOT_REPEATABLE, VERDICTS, Block, Judged

if TYPE_CHECKING:
    import pyarrow as pa

    from bridge.case import Case
    from bridge.diagnosis import Finding
    from bridge.jacobian import JacobianMap
    from bridge.relations import Result
    from bridge.verdicts import Outcome

SEQUENCES = ("y", "dx")
STATES = ("dh0", "dc0")

GRADIENTS = (
    "case", "backend", "quantity", "seq_len", "loss_step", "timestep", "layer", "direction", "batch", "row", "col",
    "value", "reference", "abs_err", "rel_err", "ulps", "tolerance", "verdict",
)  # fmt: skip
TIMESTEPS = (
    "case", "backend", "quantity", "seq_len", "loss_step", "timestep", "n", "n_disagree", "max_abs_err",
    "max_rel_err", "max_ulps", "verdict",
)  # fmt: skip
SUMMARY = (
    "case", "backend", "quantity", "verdict", "n", "n_disagree", "max_abs_err", "max_rel_err", "max_ulps",
    "worst_seq_len", "worst_timestep", "cosine", "norm_ratio", "fault", "fault_residual", "reason",
)  # fmt: skip
PAIRS = (
    "case", "quantity", "seq_len", "loss_step", "timestep", "backend_a", "backend_b", "n", "max_abs_diff",
    "rms_diff", "verdict",
)  # fmt: skip
FINDINGS = (
    "case", "backend", "quantities", "fault", "fault_residual", "steps", "closest", "condition", "workarounds",
    "others", "clause", "sentence",
)  # fmt: skip
BACKENDS = ("backend", "source", "state", "versions", "reason")
INDEX = ("timestep", "layer", "direction", "batch", "row", "col")
TEXTS = ("case", "backend", "quantity", "backend_a", "backend_b")
INTEGERS = {"seq_len", "loss_step", *INDEX, "n", "n_disagree", "worst_seq_len", "worst_timestep", "steps"}

ROWS = 2**17
"""Rows that the larger tables have in memory at once while they are written."""

Part = dict[str, Any]
"""Some rows of a table: a column's values or, where all are the same, the one value. ``verdict`` is an array."""


class Labels(NamedTuple):
    """A column of text: of each row the index of its name."""

    codes: Array
    names: tuple[str, ...]


def gradients(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per scalar."""
    return _frame_of(_columns(list(_elements(outcomes)), GRADIENTS))


def input_gradients(outcomes: Sequence[Outcome], case: str) -> pd.DataFrame:
    """Rows of :func:`gradients` that are one case's ``dx`` with the whole head."""
    chosen = [
        dataclasses.replace(outcome, quantities={"dx": outcome.quantities["dx"]})
        for outcome in outcomes
        if outcome.task.case.name == case and outcome.task.loss_step is None and "dx" in outcome.quantities
    ]
    return gradients(chosen)


def gradient_batches(outcomes: Sequence[Outcome]) -> Iterator[pa.RecordBatch]:
    """Rows of :func:`gradients`, about :data:`ROWS` at a time; at least one batch, empty where there are no rows."""
    return (_batch(_columns(parts, GRADIENTS)) for parts in _bunches(_elements(outcomes)))


def timesteps(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per time step of ``y`` and ``dx``."""
    rows = []
    for outcome, quantity, judged in _walk(outcomes):
        if quantity not in SEQUENCES:
            continue
        for block in judged.blocks:
            for step in range(block.value.shape[0]):
                one = _slice(block, step)
                rows.append(_key(outcome, quantity) | {"timestep": step} | _worst([one]) | {"verdict": _gravest(one)})
    return _frame(rows, TIMESTEPS)


def summary(outcomes: Sequence[Outcome], findings: Sequence[Finding] = ()) -> pd.DataFrame:
    """One row per case, backend and quantity; the whole head and all loss steps and prefixes together."""
    groups: dict[tuple[str, str, str], list[tuple[Outcome, Judged]]] = {}
    for outcome, quantity, judged in _walk(outcomes):
        groups.setdefault((outcome.task.case.name, outcome.backend, quantity), []).append((outcome, judged))
    named = {
        (finding.case, finding.backend, quantity): {
            "fault": finding.match.fault,
            "fault_residual": finding.match.residual,
        }
        for finding in findings
        for quantity in finding.match.quantities
    }
    rows = []
    for (case, backend, quantity), members in groups.items():
        verdict = min((judged.verdict for _, judged in members), key=_RANK.index)
        reasons = dict.fromkeys(judged.reason for _, judged in members if judged.verdict == verdict and judged.reason)
        row = {"case": case, "backend": backend, "quantity": quantity, "verdict": verdict}
        row |= _worst([block for _, judged in members for block in judged.blocks])
        row |= _where(quantity, members)
        row |= _alignment(members) | named.get((case, backend, quantity), {})
        rows.append(row | {"reason": " | ".join(reasons)})
    return _frame(rows, SUMMARY)


def findings(found: Sequence[Finding]) -> pd.DataFrame:
    """One row per case, backend and fault."""
    rows = [
        {
            "case": finding.case,
            "backend": finding.backend,
            "quantities": " ".join(finding.match.quantities),
            "fault": finding.match.fault,
            "fault_residual": finding.match.residual,
            "steps": finding.evidence.steps,
            "closest": finding.evidence.closest,
            "condition": finding.condition,
            "workarounds": " | ".join(finding.workarounds),
            "others": " | ".join(finding.match.others),
            "clause": finding.clause,
            "sentence": finding.sentence,
        }
        for finding in found
    ]
    return _frame(rows, FINDINGS)


def jacobian(maps: Sequence[JacobianMap]) -> pd.DataFrame:
    """One row per element of every map."""
    from bridge.jacobian import COLUMNS

    frames = [found.frame for found in maps if len(found.frame)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS))


def jacobian_batches(maps: Sequence[JacobianMap]) -> Iterator[pa.RecordBatch]:
    """Rows of :func:`jacobian`, in batches like those of :func:`gradient_batches`."""
    import pyarrow as pa

    for found in maps:
        for start in range(0, len(found.frame), ROWS):
            yield pa.RecordBatch.from_pandas(found.frame[start : start + ROWS], preserve_index=False)


def relations(related: Sequence[tuple[Case, Sequence[tuple[str, Result]]]]) -> pd.DataFrame:
    """One row per case, backend and relation."""
    from bridge.relations import COLUMNS, frame

    frames = [frame(case, results) for case, results in related if results]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS))


def pairs(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Every two backends that gave values, step by step; they agree within the sum of both tolerances."""
    frame = _frame_of(_columns(list(_paired(outcomes)), PAIRS))
    return frame.astype({name: object for name in (*TEXTS, "verdict") if name in frame})


def pair_batches(outcomes: Sequence[Outcome]) -> Iterator[pa.RecordBatch]:
    """Rows of :func:`pairs`, in batches like those of :func:`gradient_batches`."""
    return (_batch(_columns(parts, PAIRS)) for parts in _bunches(_paired(outcomes)))


def backends(rows: Iterable[Mapping[str, str]]) -> pd.DataFrame:
    """One row per backend."""
    return _frame(list(rows), BACKENDS)


def not_repeatable(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Both values of what two identical calls disagreed about."""
    parts = [
        _key(outcome, quantity)
        | _indices(quantity, block, outcome.task.case.directions, judged.batch_summed, slice(None))
        | {"first": first.reshape(-1), "second": second.reshape(-1)}
        | {name: getattr(block, name).reshape(-1) for name in ("reference", "verdict")}
        for outcome, quantity, judged in _walk(outcomes)
        if judged.verdict == NOT_REPEATABLE
        for block, first, second in zip(judged.blocks, judged.first, judged.again, strict=True)
    ]
    names = ("case", "backend", "quantity", "seq_len", "loss_step", *INDEX, "first", "second", "reference")
    return _frame_of(_columns(parts, names))


# -- parts -------------------------------------------------------------------------------------------------------

_RANK = (
    "not repeatable", "not finite", "disagrees", "crashed", "timed out", "agrees", "unsupported", "unavailable",
)  # fmt: skip


_AGREES, _DISAGREES = (np.int8(VERDICTS.index(verdict)) for verdict in (AGREES, DISAGREES))


def _walk(outcomes: Sequence[Outcome]) -> Iterator[tuple[Outcome, str, Judged]]:
    for outcome in sorted(outcomes, key=_Order(outcomes)):
        for quantity in QUANTITY_ORDER:
            if quantity in outcome.quantities:
                yield outcome, quantity, outcome.quantities[quantity]


class _Order:
    """Sorts outcomes by case, then backend, each in order of first appearance; the sort is stable beyond that."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.cases = list(dict.fromkeys(outcome.task.case.name for outcome in outcomes))
        self.backends = list(dict.fromkeys(outcome.backend for outcome in outcomes))

    def __call__(self, outcome: Outcome) -> tuple[int, int]:
        return self.cases.index(outcome.task.case.name), self.backends.index(outcome.backend)


def _key(outcome: Outcome, quantity: str) -> dict[str, Any]:
    task = outcome.task
    return {
        "case": task.case.name,
        "backend": outcome.backend,
        "quantity": quantity,
        "seq_len": task.seq_len,
        "loss_step": task.loss_step,
    }


def _elements(outcomes: Sequence[Outcome]) -> Iterator[Part]:
    for outcome, quantity, judged in _walk(outcomes):
        for block in judged.blocks:
            arrays = {name: getattr(block, name).reshape(-1) for name in GRADIENTS[GRADIENTS.index("value") :]}
            for start in range(0, block.value.size, ROWS):
                rows = slice(start, start + ROWS)
                yield (
                    _key(outcome, quantity)
                    | _indices(quantity, block, outcome.task.case.directions, judged.batch_summed, rows)
                    | {name: array[rows] for name, array in arrays.items()}
                )


def _indices(quantity: str, block: Block, directions: int, batch_summed: bool, rows: slice) -> dict[str, Any]:
    """Return the index columns of a range of a block's elements."""
    shape = block.value.shape
    axes = np.unravel_index(np.arange(*rows.indices(block.value.size)), shape)
    if quantity in SEQUENCES:
        return dict(zip(("timestep", "batch", "row"), axes, strict=True))
    if quantity in STATES:
        layer, direction = np.divmod(axes[0], directions)
        found = {"layer": layer, "direction": direction, "row": axes[2]}
        return found if batch_summed else found | {"batch": axes[1]}
    return {"layer": block.layer, "direction": block.direction} | dict(zip(("row", "col"), axes, strict=False))


def _bunches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Gather parts until they have :data:`ROWS` rows together."""
    bunch: list[Part] = []
    rows, full = 0, False
    for part in parts:
        bunch.append(part)
        rows += len(part["verdict"])
        if rows >= ROWS:
            yield bunch
            bunch, rows, full = [], 0, True
    if bunch or not full:
        yield bunch


def _columns(parts: Sequence[Part], columns: Sequence[str]) -> dict[str, Labels | Array]:
    """Concatenate parts; scalars are spread over their part. Integers are -1 where they are missing."""
    sizes = [len(part["verdict"]) for part in parts]
    data: dict[str, Labels | Array] = {}
    for name in columns:
        values: list[Any] = [part.get(name) for part in parts]
        if name == "verdict":
            data[name] = Labels(np.concatenate(values) if values else np.zeros(0, np.int8), VERDICTS)
        elif name in TEXTS:
            data[name] = _labelled(values, sizes)
        elif name in INTEGERS:
            filled = [np.broadcast_to(np.int32(-1 if v is None else v), n) for v, n in zip(values, sizes, strict=True)]
            data[name] = np.concatenate(filled) if filled else np.zeros(0, np.int32)
        else:
            data[name] = np.concatenate(values) if values else np.zeros(0)
    return data


def _labelled(values: Sequence[str | Labels], sizes: Sequence[int]) -> Labels:
    known: dict[str, int] = {}
    codes = []
    for value, size in zip(values, sizes, strict=True):
        if isinstance(value, Labels):
            codes.append(np.array([known.setdefault(name, len(known)) for name in value.names])[value.codes])
        else:
            codes.append(np.broadcast_to(known.setdefault(value, len(known)), size))
    return Labels(np.concatenate(codes) if codes else np.zeros(0, int), tuple(known))


def _frame_of(columns: Mapping[str, Labels | Array]) -> pd.DataFrame:
    data: dict[str, Any] = {}
    for name, column in columns.items():
        if isinstance(column, Labels):
            data[name] = pd.Categorical.from_codes(column.codes, categories=list(column.names))
        else:
            data[name] = pd.arrays.IntegerArray(column, column < 0) if name in INTEGERS else column
    return pd.DataFrame(data, columns=list(columns))


def _batch(columns: Mapping[str, Labels | Array]) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = []
    for name, column in columns.items():
        if isinstance(column, Labels):
            arrays.append(
                pa.DictionaryArray.from_arrays(column.codes.astype(np.int32), pa.array(column.names, "string"))
            )
        else:
            missing = column < 0 if name in INTEGERS else np.isnan(column)
            arrays.append(pa.array(column, mask=missing if missing.any() else None))
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame([dict(row) for row in rows], columns=list(columns))
    return frame.astype({name: "Int64" for name in columns if name in INTEGERS})


def _slice(block: Block, step: int) -> Block:
    arrays = {
        name: getattr(block, name)[step]
        for name in ("value", "reference", "tolerance", "abs_err", "rel_err", "ulps", "verdict")
    }
    return Block(block.layer, block.direction, **arrays)


def _gravest(block: Block) -> str:
    present = {VERDICTS[code] for code in np.unique(block.verdict)}
    return next(name for name in _RANK if name in present)


def _worst(found: Sequence[Block]) -> dict[str, Any]:
    wrong = VERDICTS.index(AGREES)
    return {
        "n": sum(block.value.size for block in found),
        "n_disagree": sum(int(np.count_nonzero((block.verdict > wrong) & (block.verdict < 4))) for block in found),
    } | {f"max_{name}": _largest([getattr(block, name) for block in found]) for name in ("abs_err", "rel_err", "ulps")}


def _largest(arrays: Sequence[Array]) -> float:
    """Return the largest of what is not NaN; NaN where nothing is."""
    return float(np.fmax.reduce([np.fmax.reduce(array, axis=None) for array in arrays], initial=np.nan))


def _where(quantity: str, members: Sequence[tuple[Outcome, Judged]]) -> dict[str, Any]:
    """Prefix and time step of the largest error."""
    best: tuple[float, int, int | None] | None = None
    for outcome, judged in members:
        for block in judged.blocks:
            if np.isnan(block.abs_err).all():
                continue
            at = np.unravel_index(int(np.nanargmax(block.abs_err)), block.abs_err.shape)
            worst = float(block.abs_err[at])
            if best is None or worst > best[0]:
                best = (worst, outcome.task.seq_len, int(at[0]) if quantity in SEQUENCES else None)
    return {} if best is None else {"worst_seq_len": best[1], "worst_timestep": best[2]}


def _alignment(members: Sequence[tuple[Outcome, Judged]]) -> dict[str, Any]:
    """Cosine and norm ratio of the whole gradient to the reference, at the longest prefix run with the whole head."""
    whole = [(outcome.task.seq_len, judged) for outcome, judged in members if outcome.task.loss_step is None]
    if not whole:
        return {}
    _, judged = max(whole, key=lambda pair: pair[0])
    if not judged.has_values:
        return {}
    value = np.concatenate([block.value.ravel() for block in judged.blocks])
    reference = np.concatenate([block.reference.ravel() for block in judged.blocks])
    known = ~np.isnan(value)
    value, reference = value[known], reference[known]
    with np.errstate(all="ignore"):
        length, wanted = (float(np.hypot.reduce(array)) for array in (value, reference))
        if not length or not wanted or not np.isfinite(length * wanted):
            return {"norm_ratio": length / wanted if wanted else None}
        return {"cosine": float((value / length) @ (reference / wanted)), "norm_ratio": length / wanted}


def _paired(outcomes: Sequence[Outcome]) -> Iterator[Part]:
    for _, group in itertools.groupby(outcomes, key=lambda outcome: outcome.task):
        members = list(group)
        for quantity in QUANTITY_ORDER:
            having = [
                (outcome, outcome.quantities[quantity])
                for outcome in members
                if quantity in outcome.quantities and outcome.quantities[quantity].has_values
            ]
            alike = [
                (one, other)
                for one, other in itertools.combinations(range(len(having)), 2)
                if having[one][1].batch_summed == having[other][1].batch_summed
            ]
            for _, pairs in itertools.groupby(alike, key=lambda pair: having[pair[0]][1].batch_summed):
                yield from _pairs_of(quantity, having, np.array(list(pairs)))


def _pairs_of(quantity: str, having: Sequence[tuple[Outcome, Judged]], pairs: Array) -> Iterator[Part]:
    """Compare pairs of backends whose values have one shape, as many at a time as stay within bounds."""
    task, names = having[0][0].task, tuple(outcome.backend for outcome, _ in having)
    rows = task.seq_len if quantity in SEQUENCES else 1
    values, tolerances = ([_flat(judged, name, rows) for _, judged in having] for name in ("value", "tolerance"))
    at_once = max(1, ROWS // values[pairs[0, 0]].size)
    key = {name: value for name, value in _key(having[0][0], quantity).items() if name != "backend"}
    for start in range(0, len(pairs), at_once):
        ones, others = pairs[start : start + at_once].T
        with np.errstate(all="ignore"):
            difference = np.abs(_stack(values, ones) - _stack(values, others))
            slack = _stack(tolerances, ones) + _stack(tolerances, others)
            known = ~np.isnan(difference)
            n = np.count_nonzero(known, axis=-1)
            difference[~known] = 0.0
            right = (difference <= slack) | ~known
            rms = np.sqrt(np.square(difference).sum(axis=-1) / n)
        pair, step = np.nonzero(n)
        yield key | {
            "timestep": step if quantity in SEQUENCES else None,
            "backend_a": Labels(ones[pair], names),
            "backend_b": Labels(others[pair], names),
            "n": n[pair, step],
            "max_abs_diff": difference.max(axis=-1)[pair, step],
            "rms_diff": rms[pair, step],
            "verdict": np.where(right.all(axis=-1), _AGREES, _DISAGREES)[pair, step],
        }


def _flat(judged: Judged, name: str, rows: int) -> Array:
    """Return all blocks' elements, (rows, elements); a view where there is one block."""
    arrays = [getattr(block, name).reshape(rows, -1) for block in judged.blocks]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


def _stack(arrays: Sequence[Array], chosen: Array) -> Array:
    """Return the chosen arrays as one, (len(chosen), rows, elements)."""
    return arrays[chosen[0]][None] if len(chosen) == 1 else np.stack([arrays[index] for index in chosen])
