"""What becomes of a table that is wider than the terminal: 9 cells are the least of a name, 16 of a text.

A text gets at least 24 as long as another column can be dropped instead.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pipeline.cli.output import Fitted, Layout, fitted, shortened_name

KEYS = ("user", "client_id", "O", "until", "note")
ROW = ("service-0007", "etl", "54919.9", "12:00:17.8", "until May, then less; ask dana")
LAYOUT = Layout(dropped_first=("client_id", "O"), texts=("note",))
WHOLE = 12 + 9 + 7 + 10 + 30 + 4 * 2  # cells of ROW, and of the header client id


def of_row(width: int | None, row: tuple[str, ...] = ROW, layout: Layout = LAYOUT) -> Fitted:
    return fitted(KEYS, [row], layout, width)


@pytest.mark.parametrize("width", [None, 200, WHOLE])
def test_a_table_that_fits_is_shown_in_full(width: int | None) -> None:
    assert of_row(width) == Fitted(
        (
            "user          client id  O        until       note",
            "service-0007  etl        54919.9  12:00:17.8  until May, then less; ask dana",
        ),
        dropped=(),
        is_shortened=False,
    )


def test_a_text_is_broken_between_words_before_anything_else_gives_way() -> None:
    assert of_row(WHOLE - 1).lines[1:] == (
        "service-0007  etl        54919.9  12:00:17.8  until May, then less; ask",
        "                                              dana",
    )
    assert of_row(WHOLE - 6).lines[1:] == (
        "service-0007  etl        54919.9  12:00:17.8  until May, then less;",
        "                                              ask dana",
    )


def test_a_word_is_broken_only_if_it_has_more_than_32_cells() -> None:
    bounds = ("producer_byte_rate=500000000.0", "x" * 33)  # 30 cells: a number in it stays whole
    lines = fitted(("user", "bounds"), [("alice", " ".join(bounds))], Layout(texts=("bounds",)), 36).lines
    assert lines[0] == "user"
    lines = fitted(("user", "bounds"), [("alice", " ".join(bounds))], Layout(texts=("bounds",)), 37).lines
    assert [line[7:] for line in lines[1:]] == [bounds[0], "x" * 30, "xxx"]


def test_the_default_entity_is_never_shortened() -> None:
    assert fitted(("user", "client_id"), [("<default>",) * 2], Layout(), 1).lines[1] == "<default>"


def test_the_least_important_column_is_dropped_next_and_then_the_second() -> None:
    assert of_row(WHOLE - 7).dropped == ("client_id",)
    assert of_row(WHOLE - 7).lines[0] == "user          O        until       note"
    assert of_row(WHOLE - 7 - 11).dropped == ("client_id", "O")


def test_a_name_loses_its_middle_only_when_all_that_may_be_dropped_is_dropped() -> None:
    narrow = of_row(12 + 10 + 16 + 2 * 2 - 1)
    assert narrow.dropped == ("client_id", "O")
    assert narrow.is_shortened
    assert narrow.lines[1] == "servi…-0007  12:00:17.8  until May, then"


def test_then_the_last_columns_are_dropped_and_the_first_one_stays() -> None:
    assert of_row(9 + 10 + 2).dropped == ("client_id", "O", "note")
    assert of_row(9 + 10 + 1).lines == ("user", "service-0007")
    assert of_row(1).lines == ("user", "serv…0007"), "it cannot become narrower"


def test_columns_without_a_value_go_first_and_nobody_is_told() -> None:
    table = fitted(KEYS, [(*ROW[:3], "", ROW[4])], LAYOUT, WHOLE - 12)
    assert table.lines[0] == "user          client id  O        note"
    assert table.dropped == ()


def test_numbers_instants_ids_and_headers_are_whole_or_absent() -> None:
    for width in range(1, WHOLE + 1):
        lines = of_row(width).lines
        for key, cell in zip(("client id", "O", "until"), ROW[1:4], strict=True):
            assert (f" {key}" in lines[0]) == (f" {cell}" in lines[1]), (width, lines)


def test_a_size_in_parentheses_is_one_word() -> None:
    found = fitted(("user", "bound"), [("alice", "1048576 (1.0 MB/s)")], Layout(texts=("bound",)), 24)
    assert found.lines[1:] == ("alice  1048576", "       (1.0 MB/s)")


def test_widths_are_cells_of_the_terminal_not_characters() -> None:
    table = fitted(("user", "O"), [("日本", "1"), ("abc", "2")], Layout(), 80)
    assert table.lines == ("user  O", "日本  1", "abc   2")


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("service-0007", 12, "service-0007"),
        ("service-0007", 11, "servi…-0007"),
        ("service-0007", 9, "serv…0007"),
        ("日本語の利用者", 8, "日本…者"),
        ("日本語の利用者", 14, "日本語の利用者"),
    ],
)
def test_a_shortened_name_keeps_its_beginning_and_its_end(name: str, width: int, shown: str) -> None:
    assert shortened_name(name, width) == shown


cells = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30)


@given(st.lists(st.tuples(*[cells] * 5), min_size=1, max_size=5), st.integers(20, 100))
def test_no_line_is_longer_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    lines = fitted(KEYS, rows, LAYOUT, width).lines
    assert max(map(cell_len, lines)) <= width


@given(st.lists(st.tuples(*[cells] * 5), min_size=1, max_size=5))
def test_a_wide_table_has_every_cell_in_full_and_a_line_for_each_row(rows: list[tuple[str, ...]]) -> None:
    table = fitted(KEYS, rows, LAYOUT, None)
    assert len(table.lines) == len(rows) + 1
    assert all(cell in line for row, line in zip(rows, table.lines[1:], strict=True) for cell in row)
