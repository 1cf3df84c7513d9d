"""Rounding or wrong? The tolerance of each gradient element, from the case's own noise floor.

The float64 reference is run :data:`SAMPLES` times in arithmetic that carries the simulated rounding noise of the
backend's dtype (:class:`bridge.arithmetic.Noisy`). sigma is the rms deviation per element from the exact reference;

    tolerance = 16 * max(sigma, rms(sigma over its time step or weight block) / 4) + eps * |reference| / 4 + 16 * tiny

with eps and tiny (smallest normal number) of that dtype. The rule, tried on 17,000 arrays of right backends that
stayed below 12 sigma, is that of the project's DESIGN page.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from bridge.answers import Task, blocks
from bridge.arithmetic import Array, Exact, Noisy
from bridge.case import Case
from bridge.reference import Gradients, Tape, accumulated, without_replicas

SAMPLES = 16
SEED = 0
_CHUNK_BYTES = 2**28


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
    top = np.max(np.abs(array), axis=axes, keepdims=True)
    scaled = np.divide(array, top, out=np.zeros_like(array), where=top > 0)
    result: Array = top * np.sqrt(np.mean(np.square(scaled), axis=axes, keepdims=True))
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
    case, seq_len = task.case, task.seq_len
    dtype = dtype or case.dtype
    heads = task.heads()
    with np.errstate(all="ignore"):  # a case may overflow; that is judged, not warned about
        exact = Tape(case, seq_len, Exact())
        pulled = exact.pull(*exact.cotangents(*heads))
        total: dict[str, Any] = {
            name: tuple(tuple(0.0 for _ in row) for row in value) if isinstance(value, tuple) else 0.0
            for name, value in pulled.items()
        }
        unit = float(np.finfo(dtype).eps) / 2
        generator = np.random.default_rng(SEED)
        for replicas in _chunks(case, seq_len):
            noisy = Tape(case, seq_len, Noisy(unit, generator, replicas))
            sample = noisy.pull(*noisy.cotangents(*heads))
            for name, value in sample.items():
                total[name] = _add(total[name], value, pulled[name])
    sigma = {
        name: tuple(tuple(block / math.sqrt(SAMPLES) for block in row) for row in value)
        if isinstance(value, tuple)
        else value / math.sqrt(SAMPLES)
        for name, value in total.items()
    }
    times = task.accumulate
    return Truth(task, accumulated(without_replicas(pulled), times), accumulated(sigma, times), dtype)


def _add(total: Any, sample: Any, exact: Any) -> Any:
    """Add the deviations of all replicas in quadrature; the replica axis goes."""
    if isinstance(sample, tuple):
        return tuple(
            tuple(np.hypot(t, np.hypot.reduce(s - e, axis=0)) for t, s, e in zip(*rows, strict=True))
            for rows in zip(total, sample, exact, strict=True)
        )
    return np.hypot(total, np.hypot.reduce(sample - exact, axis=1))


def _chunks(case: Case, seq_len: int) -> list[int]:
    """Split the samples so that one chunk's arrays stay within bounds; a function of the case alone."""
    width = case.hidden_size * case.directions * case.layers * case.gates * 4 + case.input_size
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
