"""What gradbridge does not cover, and the one line that says so. ``docs/limits.md`` is the page it names."""

from __future__ import annotations

from bridge.errors import BadInputError

PAGE = "docs/limits.md"

DROPOUT, PROJECTION, LENGTHS, GPU = (
    "dropout above 0",
    "a projection of the hidden state",
    "a batch of sequences of several lengths",
    "a GPU",
)

KEYS = {
    "dropout": DROPOUT,
    "projection_size": PROJECTION,
    "proj_size": PROJECTION,
    "lengths": LENGTHS,
    "sequence_length": LENGTHS,
    "sequence_lengths": LENGTHS,
    "use_sequence_length": LENGTHS,
    "valid_length": LENGTHS,
    "device": GPU,
    "ctx": GPU,
    "context": GPU,
}
"""What people call in a case file what a case does not have."""


def not_covered(where: str, key: str, what: str, found: str) -> BadInputError:
    """Return the refusal of something outside of what gradbridge compares."""
    return BadInputError(where, key, f"none ({what} is not covered, see {PAGE})", found)
