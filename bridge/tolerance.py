"""Rounding or wrong? The tolerance of each gradient element, from the case's own noise floor.

The float64 reference is run :data:`SAMPLES` times in arithmetic that carries the simulated rounding noise of the
backend's dtype (:class:`bridge.arithmetic.Noisy`). sigma is the rms deviation per element from the exact reference;

    tolerance = 16 * max(sigma, rms(sigma over its time step or weight block) / 4) + eps * |reference| / 4 + 16 * tiny

with eps and tiny (smallest normal number) of that dtype. The rule is that of the project's DESIGN page;
20,200 arrays of right backends stayed below half of it (``benchmarks/false_alarms.py``).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bridge.answers import Task, blocks
from bridge.arithmetic import TINY, Array, Exact, Noisy
from bridge.case import Case
from bridge.reference import Gradients, Tape, accumulated, without_replicas

SAMPLES = 16
SEED = 0
_CHUNK_BYTES = 2**28
_LEAST_UNIT = 2.0**-49
"""Float64's own noise would be rounded itself; 16 times as much is simulated, and a 16th of what comes of it counts."""


@dataclasses.dataclass(frozen=True)
class Truth:
    """The reference's answers to one task and how far rounding may move a backend from them.

    Attributes
    ----------
    task : the task; its case starts from the state that the backend really started from.
    reference : quantity -> values, as :func:`bridge.reference.gradients` returns them (float64).
    sigma : the same structure: rms deviation under rounding noise, per element.
    dtype : float32 or float64, the backend's.
    """

    task: Task
    reference: Gradients
    sigma: Gradients
    dtype: str

    def tolerance(self, quantity: str, summed: bool = False) -> list[Array]:
        """Tolerances of a quantity, one array per block (see :func:`bridge.answers.blocks`).

        With ``summed`` the quantity is a state's gradient summed over the batch, (layers * D, 1, H).
        """
        pairs = zip(blocks(self.sigma[quantity]), self.expected(quantity, summed), strict=True)
        return [self._tolerance(quantity, _summed_noise(s) if summed else s, r) for (_, _, s), r in pairs]

    def expected(self, quantity: str, summed: bool = False) -> list[Array]:
        """Reference values of a quantity, one array per block."""
        return [
            array.sum(axis=1, keepdims=True) if summed else array for _, _, array in blocks(self.reference[quantity])
        ]

    def _tolerance(self, quantity: str, sigma: Array, reference: Array) -> Array:
        kind = np.finfo(self.dtype)
        per_slice = quantity in ("y", "dx", "dh0", "dc0")  # a time step, or one cell's state
        axes = tuple(range(1, sigma.ndim)) if per_slice else None
        level = rms(sigma, axes) / 4
        tolerance: Array = 16 * np.maximum(sigma, level) + kind.eps / 4 * np.abs(reference) + 16 * kind.tiny
        return np.where(np.isnan(tolerance), np.inf, tolerance)


def rms(array: Array, axes: tuple[int, ...] | None) -> Array:
    """Root mean square over axes (None: all), kept as axes of 1; scaled, since squares of 1e-200 underflow."""
    top = np.abs(array).max(axis=axes, keepdims=True)
    scaled = array / np.maximum(top, TINY)
    scaled *= scaled
    result: Array = top * np.sqrt(scaled.mean(axis=axes, keepdims=True))
    return result


def _summed_noise(sigma: Array) -> Array:
    summed: Array = rms(sigma, (1,)) * math.sqrt(sigma.shape[1])
    return summed


def truth(task: Task, dtype: str | None = None) -> Truth:
    """Run the reference exactly and under noise.

    Parameters
    ----------
    task : Task
    dtype : ``float32`` or ``float64``
        The backend's; the case's by default.
    """
    return truths([task], dtype)[0]


def truths(tasks: Sequence[Task], dtype: str | None = None, parameters: bool = True) -> list[Truth]:
    """Run the reference for tasks that differ in their loss step alone; its forward passes serve all of them.

    Without ``parameters`` their gradients are left out.
    """
    case, seq_len = tasks[0].case, tasks[0].seq_len
    dtype = dtype or case.dtype
    heads = [task.heads() for task in tasks]
    with np.errstate(all="ignore"):  # a case may overflow; that is judged, not warned about
        exact = Tape(case, seq_len, Exact())
        references = [exact.pull(*exact.cotangents(*each), parameters=parameters) for each in heads]
        sums: list[Gradients] = [{} for _ in tasks]
        generator = np.random.default_rng(SEED)
        unit = float(np.finfo(dtype).eps) / 2
        simulated = max(unit, _LEAST_UNIT)
        deviation = functools.partial(_deviation, times=unit / simulated)
        for replicas in _chunks(case, seq_len):
            noisy = Tape(case, seq_len, Noisy(simulated, generator, replicas))
            for total, each, reference in zip(sums, heads, references, strict=True):
                sample = noisy.pull(*noisy.cotangents(*each), parameters=parameters)
                for name, value in sample.items():
                    share = _each(deviation, value, reference[name])
                    total[name] = _each(np.hypot, total[name], share) if name in total else share
    return [
        Truth(task, accumulated(without_replicas(right), task.accumulate), accumulated(sigma, task.accumulate), dtype)
        for task, right, sigma in zip(tasks, references, sums, strict=True)
    ]


def _each(function: Callable[[Array, Array], Array], first: Any, second: Any) -> Any:
    """Apply a function to two values of a quantity, block by block."""
    if not isinstance(first, tuple):
        return function(first, second)
    return tuple(tuple(map(function, *rows)) for rows in zip(first, second, strict=True))


def _deviation(samples: Array, exact: Array, times: float) -> Array:
    """So many times the distance of samples from the exact value over the replica axis, as a share of all samples' rms.

    Scaled by the largest of a time step or block, since squares of 1e-200 underflow.
    """
    axis = samples.ndim // 2 - 1  # sequences and states have four axes and replicas second, parameters replicas first
    distance = samples - exact
    top = np.abs(distance).max(axis=tuple(range(axis, samples.ndim)), keepdims=True)
    distance /= np.maximum(top, TINY)
    distance *= distance
    result: Array = np.sqrt(distance.sum(axis=axis) / SAMPLES) * (times * top.squeeze(axis))
    return result


def _chunks(case: Case, seq_len: int) -> list[int]:
    """Split the samples so that one chunk's arrays stay within bounds; a function of the case alone."""
    width = case.hidden_size * case.directions * case.layers * (2 * case.gates + 2) + 2 * case.input_size
    one = 8 * seq_len * case.batch * width
    at_once = max(1, min(SAMPLES, _CHUNK_BYTES // one))
    whole, rest = divmod(SAMPLES, at_once)
    return [at_once] * whole + [rest] * (rest > 0)


def swamped(expected: list[Array], tolerance: list[Array]) -> bool:
    """Whether rounding noise is as large as the gradient itself, so that agreement says nothing."""
    with np.errstate(all="ignore"):
        size, slack = (
            math.hypot(*(float(np.hypot.reduce(a, axis=None)) for a in arrays)) for arrays in (expected, tolerance)
        )
    return size > 0 and not slack < size / 2
