from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedmt.report.tables import Cell, Column, Table, amount, count, number, signed, stars
from tests.report.pages import find, texts

TABLE = Table(
    "Scores",
    [
        Column("silo", align="left"),
        Column("public", "BLEU", swatch="public"),
        Column("federated", "BLEU"),
        Column("bytes"),
    ],
    [
        [Cell("clinic"), Cell("21.3", note="95 % between 20 and 22"), Cell("35.8", strong=True), Cell("41.3 MB")],
        [Cell("日本語|x"), Cell(), Cell("+4.0*", shade=1.0), Cell("<b>")],
    ],
    [[Cell("average"), Cell("9.0"), Cell(""), Cell("1 B")]],
    ["p < 0.05"],
)


def test_plain_text_stands_in_columns_whatever_the_script() -> None:
    assert TABLE.plain() == (
        "Scores\n"
        "            BLEU       BLEU\n"
        "silo      public  federated    bytes\n"
        "────────  ──────  ─────────  ───────\n"
        "clinic      21.3       35.8  41.3 MB\n"
        "日本語|x       –      +4.0*      <b>\n"
        "────────  ──────  ─────────  ───────\n"
        "average      9.0                 1 B\n"
        "p < 0.05\n"
    )


def test_the_terminals_table_is_as_wide_as_it_says_and_holds_the_same_cells() -> None:
    console = Console(width=200, file=io.StringIO())
    assert console.measure(TABLE.rich()).maximum == TABLE.width == max(map(len, TABLE.plain().split("\n")))
    narrow = Console(width=TABLE.width, file=io.StringIO())
    narrow.print(TABLE.rich())
    printed = narrow.file.getvalue()  # type: ignore[attr-defined]
    for row in [*TABLE.rows, *TABLE.foot]:
        assert all(cell.text in printed for cell in row)


def test_markdown_escapes_what_would_be_markup() -> None:
    lines = TABLE.markdown().splitlines()
    assert lines[2:4] == ["| silo | BLEU public | BLEU federated | bytes |", "| :-- | --: | --: | --: |"]
    assert lines[4] == "| clinic | 21.3 | **35.8** | 41.3 MB |"
    assert lines[5] == "| 日本語\\|x | – | +4.0\\* | \\<b> |"
    assert lines[6] == "| **average** | **9.0** |  | **1 B** |"


def test_html_escapes_and_groups() -> None:
    page = TABLE.html()
    assert texts(page, "//tbody/tr[2]/*") == ["日本語|x", "–", "+4.0*", "<b>"]
    assert texts(page, "//th[@colspan='2']") == ["BLEU"]
    assert texts(page, "//td[contains(@class, 'good')]") == ["+4.0*"]
    assert find(page, "//td[@title]/@title") == ["95 % between 20 and 22"]
    assert texts(page, "//tfoot//th") == ["average"]


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(AssertionError):
        Table("", [Column("a"), Column("b")], [[Cell("1")]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"), (950, "950 B"), (999, "999 B"), (1000, "1.0 kB"), (99_900, "99.9 kB"), (99_990, "100 kB"),
        (41_300_000, "41.3 MB"), (412_345_678, "412 MB"), (999_600_000, "1.0 GB"), (5e12, "5.0 TB"),
    ],
)  # fmt: skip
def test_bytes_have_a_unit_and_three_digits(value: float, text: str) -> None:
    assert amount(value) == text


def test_numbers_carry_a_real_minus_and_nothing_has_no_sign() -> None:
    assert [signed(value) for value in (1.25, -3.04, 0.04, -0.04, None)] == ["+1.2", "−3.0", "0.0", "0.0", "–"]
    assert (number(12.345), number(None), count(1234567)) == ("12.3", "–", "1,234,567")


def test_stars_mark_what_is_sure() -> None:
    assert [stars(p) for p in (0.001, 0.0099, 0.01, 0.049, 0.05, None)] == ["**", "**", "*", "*", "", ""]
