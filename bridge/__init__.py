"""gradbridge: whether, where, by how much and why two frameworks disagree about a recurrent network's gradients.

Importing this package imports nothing else: each name brings its module when it is first used, so that the pytest
plugin costs nothing where it is not used. Frameworks start in worker processes only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge import reference as reference
    from bridge.backends.callables import as_backend as as_backend
    from bridge.case import Case as Case
    from bridge.case import Weights as Weights
    from bridge.case import load_case as load_case
    from bridge.case import shipped_cases as shipped_cases
    from bridge.comparison import Comparison as Comparison
    from bridge.comparison import compare as compare
    from bridge.errors import BadInputError as BadInputError
    from bridge.errors import UnsupportedError as UnsupportedError
    from bridge.jacobian import jacobian_map as jacobian_map

__version__ = "0.1.0"
__all__ = [
    "BadInputError",
    "Case",
    "Comparison",
    "UnsupportedError",
    "Weights",
    "as_backend",
    "compare",
    "jacobian_map",
    "load_case",
    "reference",
    "shipped_cases",
]

_HOMES = {
    "Case": "bridge.case",
    "Weights": "bridge.case",
    "load_case": "bridge.case",
    "shipped_cases": "bridge.case",
    "BadInputError": "bridge.errors",
    "UnsupportedError": "bridge.errors",
    "Comparison": "bridge.comparison",
    "compare": "bridge.comparison",
    "as_backend": "bridge.backends.callables",
    "jacobian_map": "bridge.jacobian",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "reference":
        return import_module("bridge.reference")
    raise AttributeError(f"module 'bridge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
