"""What a backend knows that its user could do instead."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Workaround:
    """Something to do instead; said to users only where a run of it agreed.

    Attributes
    ----------
    sentence : what, in the imperative.
    variant : another variant of the same line, or empty for the same.
    request : what to request besides.
    """

    sentence: str
    variant: str = ""
    request: tuple[str, ...] = ()
