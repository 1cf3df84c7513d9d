"""Tables on a terminal that may be too narrow for them: then every row becomes a paragraph, and nothing is cut off."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GAP = 2
INDENT = 4


def print_table(table: Table, console: Console, names: bool = True) -> None:
    """Print a table as it is where it fits, else a paragraph per row.

    Parameters
    ----------
    table : without a box, of markup strings.
    names : whether the paragraph needs the columns' headers to be understood.
    """
    if _needed(table) <= console.width:
        console.print(table)
        return
    headers = [str(column.header) for column in table.columns]
    for cells in zip(*(list(map(str, column.cells)) for column in table.columns), strict=True):
        console.print(Text.from_markup(cells[0]), soft_wrap=True)
        rest = [(name, cell) for name, cell in zip(headers[1:], cells[1:], strict=True) if cell]
        words = [f"{name}: {cell}" if names and name else cell for name, cell in rest]
        if words:
            console.print(Padding(Text.from_markup((" " * GAP).join(words)), (0, 0, 0, INDENT), expand=False))


def _needed(table: Table) -> int:
    """The least width that cuts nothing off: whole cells, or their longest words in columns that may wrap."""
    widths = []
    for column in table.columns:
        texts = [Text.from_markup(str(cell)) for cell in (column.header, *column.cells)]
        parts = [text.plain if column.no_wrap else word for text in texts for word in (text.plain.split() or [""])]
        widths.append(max([column.min_width or 0, *(Text(part).cell_len for part in parts)]))
        if column.max_width is not None:
            widths[-1] = min(widths[-1], column.max_width)
    return sum(widths) + GAP * (len(widths) - 1)
