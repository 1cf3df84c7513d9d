"""Tidy pandas tables out of judged outcomes. Indices are 0-based; empty where they do not apply."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bridge.arithmetic import Array
from bridge.case import QUANTITIES
from bridge.verdicts import AGREES, DISAGREES, NOT_REPEATABLE, VERDICTS, Block, Judged

if TYPE_CHECKING:
    from bridge.case import Case
    from bridge.diagnosis import Finding
    from bridge.jacobian import JacobianMap
    from bridge.relations import Result
    from bridge.verdicts import Outcome

SEQUENCES = ("y", "dx")
STATES = ("dh0", "dc0")
QUANTITY_ORDER = ("y", *(name for names in QUANTITIES.values() for name in names))

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
INTEGERS = {"seq_len", "loss_step", *INDEX, "n", "n_disagree", "worst_seq_len", "worst_timestep", "steps"}


def gradients(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per scalar."""
    parts: list[dict[str, Any]] = []
    for outcome, quantity, judged in _walk(outcomes):
        for block in judged.blocks:
            parts.append(
                _key(outcome, quantity)
                | _indices(quantity, block, outcome.task.case.directions, judged.batch_summed)
                | {
                    name: getattr(block, name).ravel()
                    for name in ("value", "reference", "abs_err", "rel_err", "ulps", "tolerance", "verdict")
                }
            )
    return _assemble(parts, GRADIENTS)


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


def relations(related: Sequence[tuple[Case, Sequence[tuple[str, Result]]]]) -> pd.DataFrame:
    """One row per case, backend and relation."""
    from bridge.relations import COLUMNS, frame

    frames = [frame(case, results) for case, results in related if results]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS))


def pairs(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Every two backends that gave values, step by step; they agree within the sum of both tolerances."""
    rows: list[dict[str, Any]] = []
    for _, group in itertools.groupby(outcomes, key=lambda outcome: outcome.task):
        members = list(group)
        for quantity in QUANTITY_ORDER:
            having = [
                (outcome, outcome.quantities[quantity])
                for outcome in members
                if quantity in outcome.quantities and outcome.quantities[quantity].has_values
            ]
            for (first, one), (second, other) in itertools.combinations(having, 2):
                if one.batch_summed == other.batch_summed:
                    rows += _pair(quantity, first, one, second, other)
    return _frame(rows, PAIRS)


def backends(rows: Iterable[Mapping[str, str]]) -> pd.DataFrame:
    """One row per backend."""
    return _frame(list(rows), BACKENDS)


def not_repeatable(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Both values of what two identical calls disagreed about."""
    parts: list[dict[str, Any]] = []
    for outcome, quantity, judged in _walk(outcomes):
        if judged.verdict != NOT_REPEATABLE:
            continue
        for block, first, second in zip(judged.blocks, judged.first, judged.again, strict=True):
            parts.append(
                _key(outcome, quantity)
                | _indices(quantity, block, outcome.task.case.directions, judged.batch_summed)
                | {"first": first.ravel(), "second": second.ravel(), "reference": block.reference.ravel()}
            )
    names = [name for name in GRADIENTS if name not in ("value", "abs_err", "rel_err", "ulps", "tolerance", "verdict")]
    return _assemble(parts, [*(name for name in names if name != "reference"), "first", "second", "reference"])


# -- parts -------------------------------------------------------------------------------------------------------

_RANK = (
    "not repeatable", "not finite", "disagrees", "crashed", "timed out", "agrees", "unsupported", "unavailable",
)  # fmt: skip


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


def _indices(quantity: str, block: Block, directions: int, batch_summed: bool) -> dict[str, Any]:
    shape = block.value.shape
    axes = [axis.ravel() for axis in np.indices(shape)]
    if quantity in SEQUENCES:
        return dict(zip(("timestep", "batch", "row"), axes, strict=True))
    if quantity in STATES:
        layer, direction = np.divmod(axes[0], directions)
        found = {"layer": layer, "direction": direction, "row": axes[2]}
        return found if batch_summed else found | {"batch": axes[1]}
    return {"layer": block.layer, "direction": block.direction} | dict(zip(("row", "col"), axes, strict=False))


def _assemble(parts: list[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Concatenate blocks of columns; scalars are spread over their block, None is missing."""
    sizes = [next(value.size for value in part.values() if isinstance(value, np.ndarray)) for part in parts]
    data: dict[str, Any] = {}
    for name in columns:
        values: list[Any] = [part.get(name) for part in parts]
        if name == "verdict":
            codes = np.concatenate(values) if values else np.zeros(0, np.int8)
            data[name] = pd.Categorical.from_codes(codes, categories=list(VERDICTS))
        elif name in INTEGERS:
            filled = [np.broadcast_to(np.int32(-1 if v is None else v), n) for v, n in zip(values, sizes, strict=True)]
            numbers = np.concatenate(filled) if filled else np.zeros(0, np.int32)
            data[name] = pd.arrays.IntegerArray(numbers.astype(np.int32), numbers < 0)
        elif name in ("case", "backend", "quantity"):
            labels = list(dict.fromkeys(values))
            codes = np.repeat([labels.index(value) for value in values], sizes) if values else np.zeros(0, np.int8)
            data[name] = pd.Categorical.from_codes(codes.astype(np.int32), categories=labels)
        else:
            data[name] = np.concatenate(values) if values else np.zeros(0)
    return pd.DataFrame(data, columns=list(columns))


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
    known = [float(np.nanmax(array)) for array in arrays if not np.isnan(array).all()]
    return max(known, default=float("nan"))


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


def _pair(quantity: str, first: Outcome, one: Judged, second: Outcome, other: Judged) -> Iterator[dict[str, Any]]:
    base = {name: value for name, value in _key(first, quantity).items() if name != "backend"}
    base |= {"backend_a": first.backend, "backend_b": second.backend}
    zipped = list(zip(one.blocks, other.blocks, strict=True))
    with np.errstate(all="ignore"):
        differences = [np.abs(a.value - b.value) for a, b in zipped]
        slack = [a.tolerance + b.tolerance for a, b in zipped]
    if quantity in SEQUENCES:
        steps: Iterable[tuple[int | None, list[Array], list[Array]]] = [
            (step, [differences[0][step]], [slack[0][step]]) for step in range(differences[0].shape[0])
        ]
    else:
        steps = [(None, differences, slack)]
    for step, difference, allowed in steps:
        flat = np.concatenate([array.ravel() for array in difference])
        limit = np.concatenate([array.ravel() for array in allowed])
        known = ~np.isnan(flat)
        if not known.any():
            continue
        flat, limit = flat[known], limit[known]
        verdict = AGREES if (flat <= limit).all() else DISAGREES
        yield base | {
            "timestep": step,
            "n": flat.size,
            "max_abs_diff": float(flat.max()),
            "rms_diff": float(np.sqrt(np.mean(np.square(flat)))),
            "verdict": verdict,
        }
