"""Plain tables for a terminal. Knows nothing of what stands in them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["draw"]


def draw(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The first `left` columns and the last stand left, the others right."""
    every = [head, *rows]
    widths = [max(len(row[at]) for row in every) for at in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if at < left or at == len(head) - 1 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  " + "   ".join(cells).rstrip()

    rule = "  " + "─" * (sum(widths) + 3 * (len(widths) - 1))
    return "\n".join([line(head), rule, *map(line, rows)])
