"""The two arithmetics the reference runs in: exact (as exact as the dtype), and with simulated rounding noise.

Arrays carry a *replica* axis third from the right: ``(..., R, B, N)``. Replicas are independent computations of the
same case (noise samples, or one loss step each); an axis of 1 is shared by all of them.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def sigmoid(a: Array) -> tuple[Array, Array]:
    """Return the logistic function and its complement ``1 - sigmoid(a)``, both to relative accuracy in both tails."""
    small = np.exp(-np.abs(a))
    large = 1 / (1 + small)
    small *= large
    positive = a >= 0
    return np.where(positive, large, small), np.where(positive, small, large)


def sech2(a: Array) -> Array:
    """Return ``1 - tanh(a)**2`` to relative accuracy in the tails, where the subtraction would leave nothing."""
    small = np.square(np.exp(-np.abs(a)))  # the square of exp: doubling the argument may overflow
    derivative: Array = 4 * small / np.square(1 + small)
    return derivative


class Arithmetic(Protocol):
    """What a cell computes with. Every method returns an array of the operands' dtype."""

    def product(self, a: Array, b: Array) -> Array:
        """Matrix product over the last axis of ``a`` and the second to last of ``b``."""

    def rounded(self, value: Array) -> Array:
        """Return the value as a framework would have stored it."""

    def sigmoid(self, a: Array) -> tuple[Array, Array, Array]:
        """Return the logistic function, its complement and its derivative at ``a``."""

    def tanh(self, a: Array) -> tuple[Array, Array]:
        """Return the hyperbolic tangent and its derivative at ``a``."""


class Exact:
    """Plain NumPy."""

    def product(self, a: Array, b: Array) -> Array:
        """Matrix product."""
        result: Array = a @ b
        return result

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
    ``u * hypot(sqrt(sum of squared products) * sqrt(log2 n), n * |sum| / 32)``, whose second part lets 16 sigma reach
    the bound ``u * n / 2 * |sum|`` of adding equal terms one after another (Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, section 4.2), which all round the same way; derivatives of activations are formed from the rounded
    activation, as frameworks form them (``1 - h**2``, ``s * (1 - s)``), with the cancellation that brings.

    Parameters
    ----------
    unit : float
        Unit roundoff u of the simulated dtype.
    generator : numpy.random.Generator
    replicas : int
        Independent noise samples R; operands whose replica axis is 1 are spread over all of them.
    """

    def __init__(self, unit: float, generator: np.random.Generator, replicas: int) -> None:
        self.unit, self.generator, self.replicas = unit, generator, replicas

    def _spread(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-3], self.replicas, *shape[-2:])

    def product(self, a: Array, b: Array) -> Array:
        """Matrix product with summation noise, then rounded."""
        result = a @ b
        terms = a.shape[-1]
        if terms > 1:
            # scaled by row and column, since squares under- and overflow where the products do not
            rows = np.max(np.abs(a), axis=-1, keepdims=True)
            columns = np.max(np.abs(b), axis=-2, keepdims=True)
            left = np.divide(a, rows, out=np.zeros_like(a), where=rows > 0)
            right = np.divide(b, columns, out=np.zeros_like(b), where=columns > 0)
            spread = np.sqrt(np.square(left) @ np.square(right)) * rows * columns
            spread = np.hypot(spread * math.sqrt(math.log2(terms)), result * (terms / 32)) * self.unit
            result = result + spread * self.generator.standard_normal(self._spread(result.shape))
        return self.rounded(result)

    def _errors(self, shape: tuple[int, ...]) -> Array:
        """Relative errors ``u * U(-1, 1)``; kept apart from what they disturb, since ``1 + u`` is rounded itself."""
        return self.unit * (2 * self.generator.random(self._spread(shape)) - 1)

    def rounded(self, value: Array) -> Array:
        """Return the value times ``1 + u * U(-1, 1)``, spread over the replicas."""
        noise = self.generator.random(self._spread(value.shape))
        noise *= 2 * self.unit
        noise += 1 - self.unit
        noise *= value
        return noise

    def sigmoid(self, a: Array) -> tuple[Array, Array, Array]:
        """Return the logistic function, its complement and its derivative, all from the rounded function."""
        value, complement = sigmoid(a)
        error = self._errors(value.shape) * value
        complement = self.rounded(complement - error)
        return value + error, complement, self.rounded((value + error) * complement)

    def tanh(self, a: Array) -> tuple[Array, Array]:
        """Return the hyperbolic tangent and its derivative, from the rounded function."""
        value = np.tanh(a)
        error = self._errors(value.shape) * value
        return value + error, self.rounded(sech2(a) - error * (2 * value + error))
