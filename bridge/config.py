"""The user's configuration: ``gradbridge.toml`` in the current folder, or in the user's configuration folder.

::

    recordings = ["folder/with/recordings"]

    [[flux]]                                  # one Julia environment that holds a Flux
    project = "path/to/its/project"           # folder of its Project.toml
    julia = "path/to/bin/julia"               # default: julia on PATH
    python = "path/to/bin/python"             # default: this Python; an older Julia needs one with an older juliacall
    env = { JULIA_LOAD_PATH = "..." }         # further variables for the worker

Paths are relative to the file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bridge.errors import BadInputError

NAME = "gradbridge.toml"


def config_path() -> Path | None:
    """The file in force: ``GRADBRIDGE_CONFIG``, else the current folder's, else the user's, else none."""
    named = os.environ.get("GRADBRIDGE_CONFIG")
    if named:
        return Path(named)
    places = [Path(NAME)]
    with contextlib.suppress(RuntimeError):  # an account without a home has no folder of its own
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        places.append(base / "gradbridge" / NAME)
    return next((path for path in places if path.is_file()), None)


def cache_folder() -> Path:
    """Where environments and what is known of them are kept: ``GRADBRIDGE_CACHE``, else the user's cache."""
    own = os.environ.get("GRADBRIDGE_CACHE")
    if not own and not os.environ.get("XDG_CACHE_HOME") and Path("~").expanduser() == Path("~"):
        return Path(tempfile.gettempdir()) / "gradbridge"  # an account without a home
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradbridge"


def added_environments() -> dict[str, str]:
    """Environments that ``gradbridge env add`` made: line (``mxnet-1.9.1``) -> interpreter."""
    folders = sorted((cache_folder() / "envs").glob("mxnet-*[0-9]"))
    return {folder.name: str(folder / "bin" / "python") for folder in folders}


def load_config() -> dict[str, Any]:
    """Read it: ``{"flux": [...], "recordings": [...]}``, paths made absolute.

    Raises
    ------
    BadInputError
        Naming file, key, expected and found.
    """
    path = config_path()
    if path is None:
        return {"flux": [], "recordings": []}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(str(path), "", "a readable file", error.strerror or str(error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInputError(str(path), "", "TOML", str(error)) from None
    return _checked(document, path)


def _checked(document: dict[str, Any], path: Path) -> dict[str, Any]:
    import msgspec

    strict: dict[str, Any] = {"forbid_unknown_fields": True, "kw_only": True}
    optional = str | None
    flux = msgspec.defstruct(
        "Flux",
        [
            ("project", str),
            ("julia", optional, None),
            ("python", optional, None),
            ("env", dict[str, str], msgspec.field(default_factory=dict)),
        ],
        **strict,
    )
    whole = msgspec.defstruct(
        "Config",
        [
            ("flux", list[flux], msgspec.field(default_factory=list)),  # type: ignore[valid-type]
            ("recordings", list[str], msgspec.field(default_factory=list)),
        ],
        **strict,
    )
    try:
        checked = msgspec.to_builtins(msgspec.convert(document, whole))
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        raise BadInputError(str(path), place.strip("`."), "the keys that docs/flux.md lists", text) from None
    here = path.resolve().parent
    try:
        checked["recordings"] = [str(here / Path(name).expanduser()) for name in checked["recordings"]]
        for entry in checked["flux"]:
            for key in ("project", "julia", "python"):
                if entry[key] is None:
                    del entry[key]
                elif key == "project" or os.sep in entry[key]:
                    entry[key] = os.path.normpath(here / Path(entry[key]).expanduser())
    except RuntimeError as error:
        raise BadInputError(str(path), "", "paths that can be resolved", str(error)) from None
    return checked  # type: ignore[no-any-return]
