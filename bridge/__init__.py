"""gradbridge: whether, where, by how much and why two frameworks disagree about a recurrent network's gradients.

Importing this package imports neither a framework nor pandas; those come when a worker starts or a table is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.case import Case, Weights, load_case, shipped_cases
from bridge.errors import BadInputError

if TYPE_CHECKING:
    from bridge import reference as reference
    from bridge.comparison import Comparison as Comparison
    from bridge.comparison import compare as compare
    from bridge.jacobian import jacobian_map as jacobian_map

__version__ = "0.1.0"
__all__ = [
    "BadInputError",
    "Case",
    "Comparison",
    "Weights",
    "compare",
    "jacobian_map",
    "load_case",
    "reference",
    "shipped_cases",
]

_LATER = {"jacobian_map": "bridge.jacobian", "compare": "bridge.comparison", "Comparison": "bridge.comparison"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    if name == "reference":
        return import_module("bridge.reference")
    raise AttributeError(f"module 'bridge' has no attribute {name!r}")
