"""The two arithmetics the reference runs in: exact (as exact as the dtype), and with simulated rounding noise.

Both work on *columns*, arrays (N, R, B) of N features, R replicas and B sequences: weights act on them as they
are written, ``weight @ columns``, and a gate is one contiguous block. Replicas are independent computations of the same
case (noise samples, or one loss step each); an axis of 1 is shared by all of them.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_FAR = {np.dtype(np.float32): 80.0, np.dtype(np.float64): 700.0}
"""Where exp(a) and exp(-a) are still in range and their ratio has left it."""

TINY = float(np.finfo(np.float64).tiny)
"""The smallest normal float64: what to divide by where there is only zero."""

_STRETCH = 2**19
"""The longest stretch of noise that is read from one place; a pool holds two of them."""

_SHARED, _OWN = math.sqrt(1 / 4), math.sqrt(3 / 4)
"""Parts of an error that all errors of its replica share, and that it has alone; their squares sum to 1."""


def sigmoid(a: Array) -> tuple[Array, Array]:
    """Return the logistic function and its complement ``1 - sigmoid(a)``, both to relative accuracy in both tails."""
    half = a * 0.5
    far = _FAR[a.dtype]
    np.maximum(half, -far, out=half)
    np.minimum(half, far, out=half)
    rising = np.exp(half, out=half)
    falling = 1 / rising
    total = rising + falling
    rising /= total
    falling /= total
    return rising, falling


def sech2(a: Array) -> Array:
    """Return ``1 - tanh(a)**2`` to relative accuracy in the tails, where the subtraction would leave nothing."""
    decay = np.abs(a)
    np.negative(decay, out=decay)
    np.exp(decay, out=decay)
    decay *= decay  # the square of exp: doubling the argument may overflow
    derivative = 2 / (1 + decay)
    derivative *= derivative
    derivative *= decay
    return derivative


def times(weight: Array, columns: Array) -> Array:
    """Return the matrix ``weight`` (M, N) times columns (N, R, B), which is (M, R, B)."""
    flat = columns.reshape(len(columns), -1)
    if len(weight) < len(columns):  # OpenBLAS is faster this way round, by more than the small result's copy takes
        product: Array = np.ascontiguousarray((flat.T @ weight.T).T)
    else:
        product = weight @ flat
    return product.reshape(-1, *columns.shape[1:])


def outer(left: Array, right: Array) -> Array:
    """Sum ``left @ right.T`` over the batch: columns (M, R, B) and (N, R, B) give (R, M, N)."""
    product: Array = left.swapaxes(0, 1) @ right.transpose(1, 2, 0)
    return product


Linear = Callable[[Array], Array]
"""A matrix (M, N) ready to be applied to columns (N, R, B) again and again."""


class Arithmetic(Protocol):
    """What a cell computes with. Results have the operands' dtype.

    Attributes
    ----------
    replicas : R of everything that has been rounded.
    columns : how many columns at most are summed over at once.
    """

    replicas: int
    columns: int

    def linear(self, weight: Array) -> Linear:
        """Return the product with a matrix (M, N)."""

    def outer(self, left: Array, right: Array) -> Array:
        """Sum outer products over the batch: columns (M, R, B) and (N, R, B) give (R, M, N)."""

    def rounded(self, value: Array) -> Array:
        """Round an array, in place, as a framework would have stored it; return it."""

    def sigmoid(self, a: Array) -> tuple[Array, Array, Array]:
        """Return the logistic function, its complement and its derivative at ``a``."""

    def tanh(self, a: Array) -> tuple[Array, Array]:
        """Return the hyperbolic tangent and its derivative at ``a``."""


class Exact:
    """Plain NumPy; long sums are cut into pieces that stay in the cache, and yet make a fast product."""

    replicas = 1
    columns = 2**9

    def linear(self, weight: Array) -> Linear:
        """Return the product with a matrix."""
        return functools.partial(times, weight)

    def outer(self, left: Array, right: Array) -> Array:
        """Sum outer products over the batch."""
        return outer(left, right)

    def rounded(self, value: Array) -> Array:
        """Return the value itself."""
        return value

    def sigmoid(self, a: Array) -> tuple[Array, Array, Array]:
        """Return the logistic function, its complement and its derivative."""
        value, complement = sigmoid(a)
        return value, complement, value * complement

    def tanh(self, a: Array) -> tuple[Array, Array]:
        """Return the hyperbolic tangent and its derivative."""
        return np.tanh(a), sech2(a)


class Noisy:
    """Arithmetic with the rounding noise of a dtype, simulated in float64; see ``bridge.tolerance`` for its use.

    Every stored value is multiplied by ``1 + u * U(-1, 1)``; every sum of n products gets normal noise of
    ``u * hypot(sqrt(sum of squared products) * sqrt(log2 n), n * |sum| / 32)`` (as the first replica has them), whose
    second part lets 16 sigma reach the bound ``u * n / 2 * |sum|`` of adding equal terms one after another (Higham,
    Accuracy and Stability of Numerical Algorithms, 2002, section 4.2), which all round the same way; derivatives of
    activations are formed from the rounded activation, as frameworks form them (``1 - h**2``, ``s * (1 - s)``), with
    the cancellation that brings.

    A quarter of each error's variance is that of one number which all errors of its replica share: equal steps,
    sequences or units round alike, and their errors add up as independent ones would not. Where terms differ in sign,
    relative errors that they share cancel as the terms do, and the noise hardly grows. The rest is read from a pool of
    random numbers, each time from a random place on: to draw every number afresh would take several times as long as
    the arithmetic.

    Parameters
    ----------
    unit : float
        Unit roundoff u of the simulated dtype.
    generator : numpy.random.Generator
    replicas : int
        Independent noise samples R; operands whose replica axis is 1 are spread over all of them.
    """

    columns = 2**63  # a sum's noise depends on all of its terms

    def __init__(self, unit: float, generator: np.random.Generator, replicas: int) -> None:
        self.unit, self.replicas = unit, replicas
        self._place = random.Random(int(generator.integers(2**32))).random
        self._shared_error, self._shared_normal = generator.choice((-1.0, 1.0), (2, replicas, 1)) * _SHARED
        self._shared_error *= unit / math.sqrt(3)  # the standard deviation of U(-u, u)

    def linear(self, weight: Array) -> Linear:
        """Return the product with a matrix, with summation noise, then rounded."""
        squares, rows = _squares(weight, -1)
        rows = rows[..., None]

        def apply(columns: Array) -> Array:
            squared, tops = _squares(columns[:, :1], 0)
            product = times(weight, columns)
            spread = self._spread(np.sqrt(times(squares, squared)) * rows * tops, product[:, :1], weight.shape[1])
            return self._noised(product, spread, (len(weight), self.replicas, product.shape[-1]))

        return apply

    def outer(self, left: Array, right: Array) -> Array:
        """Sum outer products over the batch, with summation noise, then rounded."""
        (a, rows), (b, columns) = (_squares(array[:, :1], -1) for array in (left, right))
        product = outer(left, right).swapaxes(0, 1)
        roots = (np.sqrt(outer(a, b)) * outer(rows, columns)).swapaxes(0, 1)
        spread = self._spread(roots, product[:, :1], left.shape[-1])
        return self._noised(product, spread, (len(product), self.replicas, product.shape[-1])).swapaxes(0, 1)

    def rounded(self, value: Array) -> Array:
        """Add the values' rounding errors, in place."""
        value += self._errors_of(value)
        return value

    def sigmoid(self, a: Array) -> tuple[Array, Array, Array]:
        """Return the logistic function, its complement and its derivative, all from the rounded function."""
        value, complement = sigmoid(a)
        error = self._errors_of(value)
        value += error
        complement -= error
        self.rounded(complement)
        return value, complement, self.rounded(value * complement)

    def tanh(self, a: Array) -> tuple[Array, Array]:
        """Return the hyperbolic tangent and its derivative, from the rounded function."""
        value = np.tanh(a)
        error = self._errors_of(value)
        return value + error, self.rounded(sech2(a) - error * (2 * value + error))

    def _errors_of(self, value: Array) -> Array:
        """Rounding errors of values; not factors ``1 + u * U(-1, 1)``, which would be rounded themselves."""
        errors: Array = self._read(_errors(self.unit), value.shape) + self._shared_error
        errors *= value
        return errors

    def _spread(self, root: Array, total: Array, terms: int) -> Array:
        """Noise of sums of so many terms, from the root of their squares' sum and the sum itself."""
        if terms == 1:
            return np.zeros_like(total)
        spread: Array = np.hypot(root * math.sqrt(math.log2(terms)), total * (terms / 32))
        spread *= self.unit
        return spread

    def _noised(self, product: Array, spread: Array, shape: tuple[int, ...]) -> Array:
        """Give the product normal noise of that spread, in all replicas, and round it."""
        noise = self._read(_normals(), shape) + self._shared_normal
        noise *= spread
        noise += product
        return self.rounded(noise)

    def _read(self, pool: Array, shape: tuple[int, ...]) -> Array:
        pieces = []
        for left in range(math.prod(shape), 0, -_STRETCH):
            start = int(self._place() * _STRETCH)
            pieces.append(pool[start : start + min(left, _STRETCH)])
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).reshape(shape)


def _squares(array: Array, axis: int) -> tuple[Array, Array]:
    """Return squares of the array, scaled along an axis lest they under- or overflow, and the scale."""
    top = np.abs(array).max(axis=axis, keepdims=True)
    scaled = array / np.maximum(top, TINY)
    scaled *= scaled
    return scaled, top


@functools.lru_cache(maxsize=2)
def _errors(unit: float) -> Array:
    return _OWN * np.random.default_rng(1).uniform(-unit, unit, 2 * _STRETCH)


@functools.lru_cache(maxsize=1)
def _normals() -> Array:
    return _OWN * np.random.default_rng(2).standard_normal(2 * _STRETCH)
