"""Tables as values: the same one for the terminal, as plain text, in Markdown and in HTML.

Knows how a table looks, and nothing of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from rich.box import HORIZONTALS
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text as RichText

__all__ = ["Cell", "Column", "Table", "amount", "count", "number", "signed", "stars"]

MISSING = "–"


@dataclass(frozen=True)
class Cell:
    """`shade` from −1 (bad) to 1 (good) tints it where there is colour; `note` is told on hovering."""

    text: str = MISSING
    strong: bool = False
    shade: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Column:
    """Neighbours of one `group` stand under one heading; `swatch` is the name of a model's colour in the page."""

    title: str
    group: str = ""
    align: Literal["left", "right"] = "right"
    swatch: str = ""


@dataclass(frozen=True)
class Table:
    """`foot` rows, such as averages, stand below a line."""

    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    foot: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in [*self.rows, *self.foot]), self.title

    @property
    def width(self) -> int:
        """Of the plain text and of the rich table alike, in columns of a terminal."""
        return sum(self._widths()) + 2 * (len(self.columns) - 1)

    def rich(self) -> RichTable:
        table = RichTable(
            title=self.title or None,
            title_justify="left",
            title_style="bold",
            caption="\n".join(self.notes) or None,
            caption_justify="left",
            box=HORIZONTALS,
            show_edge=False,
            pad_edge=False,
            collapse_padding=True,
            header_style="dim",
        )
        for column, heading in zip(self.columns, self._headings(), strict=True):
            table.add_column(RichText(heading), justify=column.align, no_wrap=True, vertical="bottom")
        for row in self.rows:
            table.add_row(*map(_rich, row))
        if self.foot:
            table.add_section()
            for row in self.foot:
                table.add_row(*map(_rich, row))
        return table

    def plain(self) -> str:
        widths = self._widths()
        headings = [heading.split("\n") for heading in self._headings()]
        depth = max(map(len, headings))
        lines = [self.title] if self.title else []
        for level in range(depth):
            lines.append(self._line([([""] * (depth - len(one)) + one)[level] for one in headings], widths))
        rule = "  ".join("─" * width for width in widths)
        lines.append(rule)
        lines += [self._line([cell.text for cell in row], widths) for row in self.rows]
        if self.foot:
            lines += [rule, *(self._line([cell.text for cell in row], widths) for row in self.foot)]
        return "\n".join([*lines, *self.notes]) + "\n"

    def markdown(self) -> str:
        def line(texts: Sequence[str]) -> str:
            return "| " + " | ".join(_markdown(text) for text in texts) + " |"

        lines = [f"**{_markdown(self.title)}**", ""] if self.title else []
        lines.append(line([heading.replace("\n", " ") for heading in self._headings()]))
        lines.append("| " + " | ".join(":--" if column.align == "left" else "--:" for column in self.columns) + " |")
        for row in self.rows:
            lines.append("| " + " | ".join(_bold(cell, cell.strong) for cell in row) + " |")
        for row in self.foot:
            lines.append("| " + " | ".join(_bold(cell, True) for cell in row) + " |")
        if self.notes:
            lines += ["", *(_markdown(note) + "  " for note in self.notes)]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        parts = ['<div class="scroll"><table>']
        if self.title:
            parts.append(f"<caption>{escape(self.title)}</caption>")
        parts += ["<thead>", *self._html_head(), "</thead>", "<tbody>"]
        parts += [self._html_row(row) for row in self.rows]
        parts.append("</tbody>")
        if self.foot:
            parts += ["<tfoot>", *(self._html_row(row) for row in self.foot), "</tfoot>"]
        parts.append("</table></div>")
        parts += [f'<p class="note">{escape(note)}</p>' for note in self.notes]
        return "\n".join(parts) + "\n"

    def _headings(self) -> list[str]:
        return [f"{column.group}\n{column.title}" if column.group else column.title for column in self.columns]

    def _widths(self) -> list[int]:
        headings = self._headings()
        return [
            max(
                *(cell_len(part) for part in headings[index].split("\n")),
                *(cell_len(row[index].text) for row in [*self.rows, *self.foot]),
                1,
            )
            for index in range(len(self.columns))
        ]

    def _line(self, texts: Sequence[str], widths: Sequence[int]) -> str:
        placed = []
        for column, text, width in zip(self.columns, texts, widths, strict=True):
            space = " " * (width - cell_len(text))
            placed.append(text + space if column.align == "left" else space + text)
        return "  ".join(placed).rstrip()

    def _html_head(self) -> list[str]:
        grouped = any(column.group for column in self.columns)
        first, second = [], []
        index = 0
        while index < len(self.columns):
            column = self.columns[index]
            if not column.group:
                span = ' rowspan="2"' if grouped else ""
                first.append(
                    f'<th scope="col" class="{column.align}"{span}>{_swatch(column)}{escape(column.title)}</th>'
                )
                index += 1
                continue
            members = []
            while index < len(self.columns) and self.columns[index].group == column.group:
                members.append(self.columns[index])
                index += 1
            first.append(f'<th scope="colgroup" colspan="{len(members)}" class="group">{escape(column.group)}</th>')
            for place, member in enumerate(members):
                edge = " edge" if place == 0 else ""
                second.append(
                    f'<th scope="col" class="{member.align}{edge}">{_swatch(member)}{escape(member.title)}</th>'
                )
        rows = ["<tr>" + "".join(first) + "</tr>"]
        return [*rows, "<tr>" + "".join(second) + "</tr>"] if second else rows

    def _html_row(self, row: Sequence[Cell]) -> str:
        cells = []
        for index, (column, cell) in enumerate(zip(self.columns, row, strict=True)):
            before = self.columns[index - 1].group if index else column.group
            names = [column.align, *(["edge"] if column.group and column.group != before else [])]
            names += ["strong"] * cell.strong + (["good"] if cell.shade > 0 else ["bad"] if cell.shade < 0 else [])
            style = f' style="--shade:{min(abs(cell.shade), 1):.2f}"' if cell.shade else ""
            note = f' title="{escape(cell.note)}"' if cell.note else ""
            tag, scope = ("th", ' scope="row"') if index == 0 else ("td", "")
            cells.append(f'<{tag}{scope} class="{" ".join(names)}"{style}{note}>{escape(cell.text)}</{tag}>')
        return "<tr>" + "".join(cells) + "</tr>"


def number(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 1) -> str:
    """With a real minus sign, and no sign on what rounds to nothing."""
    if value is None:
        return MISSING
    text = f"{abs(value):.{digits}f}"
    return text if not float(text) else ("+" if value > 0 else "−") + text


def count(value: int) -> str:
    return f"{value:,}"


def amount(value: float) -> str:
    """Bytes, in decimal units: 950 B, 41.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def stars(p: float | None) -> str:
    """** for p < 0.01, * for p < 0.05."""
    return "" if p is None else "**" if p < 0.01 else "*" if p < 0.05 else ""


def _rich(cell: Cell) -> RichText:
    style = "bold" if cell.strong else ""
    if cell.shade:
        style += " green" if cell.shade > 0 else " red"
    elif cell.text == MISSING:
        style += " dim"
    return RichText(cell.text, style=style.strip())


def _bold(cell: Cell, strong: bool) -> str:
    text = _markdown(cell.text)
    return f"**{text}**" if strong and cell.text not in ("", MISSING) else text


def _markdown(text: str) -> str:
    return "".join("\\" + character if character in "\\|*_`<[" else character for character in text).replace("\n", " ")


def _swatch(column: Column) -> str:
    return f'<i class="swatch {escape(column.swatch)}"></i>' if column.swatch else ""
