"""The ways gradbridge refuses: bad input, and what a backend cannot do."""

from __future__ import annotations


class BadInputError(ValueError):
    """Input that cannot be used, said in one line: where, which key, what was expected, what was found.

    Parameters
    ----------
    where : str
        The file or object at fault.
    key : str
        The key, argument or array in it; empty where the whole is meant.
    expected, found : str
        What would be right, and what there is.
    """

    def __init__(self, where: str, key: str, expected: str, found: str) -> None:
        self.where, self.key, self.expected, self.found = where, key, expected, found
        place = f"{where}: {key}" if key else where
        super().__init__(" ".join(f"{place}: expected {expected}, found {found}".split()))

    def at(self, where: str) -> BadInputError:
        """Return the same refusal, said of another place (the file a value came from)."""
        return BadInputError(where, self.key, self.expected, self.found)


class UnsupportedError(Exception):
    """Raised inside a backend for what it cannot compute; its text is the reason in the table."""
