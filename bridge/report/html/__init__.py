"""``report.html``: one file that holds a whole run, made from the run's saved tables alone."""

from __future__ import annotations

from pathlib import Path

from bridge.case import atomic
from bridge.errors import BadInputError
from bridge.report.html.page import render
from bridge.report.saved import Saved

NAME = "report.html"


def write(folder: Path) -> Path:
    """Write ``report.html`` into the folder of a run, and return its path.

    Raises
    ------
    BadInputError
        When the folder is not a run's, one of its tables is broken (naming the file), or it cannot be written.
    """
    page = render(Saved(folder))
    path = folder / NAME
    try:
        with atomic(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadInputError(str(folder), "", "a folder that can be written", error.strerror or str(error)) from None
    return path
