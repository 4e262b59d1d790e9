"""Tables: no boxes, aligned, the same in a pipe as on a terminal but for colour and width."""

from __future__ import annotations

from angelia.cli.tables import Column, Paint, counted, facts, table

Row = tuple[str, str, int]
COLUMNS: list[Column[Row]] = [
    Column("NAME", lambda r: r[0], long=True),
    Column("STATE", lambda r: r[1]),
    Column("PENDING", lambda r: f"{r[2]:,}", right=True),
]
ROWS: list[Row] = [("orders", "warn", 12480), ("orders.email", "ok", 0)]
PLAIN, COLOURED = Paint(False), Paint(True)


def test_a_table_is_aligned_and_has_no_boxes() -> None:
    assert list(table(COLUMNS, ROWS, paint=PLAIN, most=None)) == [
        "NAME          STATE  PENDING",
        "orders        warn    12,480",
        "orders.email  ok           0",
    ]


def test_colour_adds_nothing_but_colour() -> None:
    import re

    plain = list(table(COLUMNS, ROWS, paint=PLAIN, most=None))
    coloured = list(table(COLUMNS, ROWS, paint=COLOURED, most=None))
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in coloured] == plain
    assert coloured[0].startswith("\x1b[1mNAME")
    assert coloured[1:] == plain[1:]


def test_only_state_words_are_coloured() -> None:
    assert [COLOURED.state(word) for word in ("ok", "odd")] == ["\x1b[32mok\x1b[0m", "odd"]


def test_nothing_is_a_dash() -> None:
    assert list(table(COLUMNS, [("", "", 0)], paint=PLAIN, most=None))[1] == "-     -            0"


def test_a_long_name_is_cut_on_a_narrow_terminal_only() -> None:
    rows: list[Row] = [("x" * 255, "ok", 1)]
    assert "x" * 255 in list(table(COLUMNS, rows, paint=PLAIN, most=None))[1]
    narrow = list(table(COLUMNS, rows, paint=PLAIN, most=40))
    assert max(map(len, narrow)) == 40
    assert "…" in narrow[1]


def test_a_hostile_cell_sits_still() -> None:
    rows: list[Row] = [("a\x1b[2J\nb", "ok", 1)]
    lines = list(table(COLUMNS, rows, paint=PLAIN, most=None))
    assert len(lines) == 2
    assert lines[1].startswith("a\\x1b[2J\\nb  ok")


def test_wide_letters_keep_the_columns() -> None:
    rows: list[Row] = [("漢字", "ok", 1), ("abcd", "ok", 1)]
    _, wide, narrow = table(COLUMNS, rows, paint=PLAIN, most=None)
    assert wide.index("ok") + 2 == narrow.index("ok")


def test_facts_stand_in_one_column() -> None:
    assert list(facts([("id", "7"), ("handle", "")])) == ["id      7", "handle  -"]
    assert list(facts([("id", "7")], least=11)) == ["id           7"]


def test_numbers_are_counted_in_words() -> None:
    assert [counted(n, "warning") for n in (0, 1, 1204)] == ["0 warnings", "1 warning", "1,204 warnings"]
