"""All backends there are, and how a pattern picks among them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from bridge.backends import mxnet
from bridge.backends.base import Backend
from bridge.errors import BadInputError


def default_backends() -> list[Backend]:
    """What a comparison runs when nobody says otherwise."""
    return list(mxnet.backends())


def all_backends() -> list[Backend]:
    """Every backend that a pattern can name."""
    return default_backends()


def select(patterns: Iterable[str | Backend] | None) -> list[Backend]:
    """Backends whose name matches any pattern (shell wildcards; a pattern without ``/`` matches either half).

    Raises
    ------
    BadInputError
        For a pattern that matches nothing.
    """
    if patterns is None:
        return default_backends()
    known = all_backends()
    chosen: list[Backend] = []
    for pattern in patterns:
        if not isinstance(pattern, str):
            chosen.append(pattern)
            continue
        matching = [backend for backend in known if _matches(backend.name, pattern)]
        if not matching:
            names = ", ".join(backend.name for backend in default_backends())
            raise BadInputError("backend", "", f"a pattern that matches one of {names}", repr(pattern))
        chosen += matching
    return list({backend.name: backend for backend in chosen}.values())


def _matches(name: str, pattern: str) -> bool:
    halves = [name] if "/" in pattern else [name, *name.split("/", 1)]
    return any(fnmatch.fnmatchcase(half, pattern) for half in halves)
