"""Charts and pages: gaps are gaps, names are text, nothing is loaded from elsewhere."""

import re
from xml.parsers.expat import ParserCreate

import pytest

from pipeline.reports.page import bar_chart, page, table, time_chart

EVIL = "<img src=x onerror=alert(1)>\x1b[2J\"'&"
SPAN_MS = (1_795_392_000_000, 1_795_399_200_000)


def chart(known: list[bool]) -> str:
    return time_chart("t", [("a", [1.0] * len(known))], known, SPAN_MS, str)


@pytest.mark.parametrize(
    ("known", "lines", "gaps"),
    [
        ([True, True, True, True], 1, 0),
        ([True, False, True, True], 2, 1),
        ([False, True, True, False], 1, 2),
        ([False, False, False, False], 0, 1),
        ([True, False, False, True], 2, 1),
    ],
)
def test_a_part_without_data_is_a_gap_in_the_line_and_not_zero(known: list[bool], lines: int, gaps: int) -> None:
    drawn = chart(known)
    assert drawn.count("<polyline") == lines
    assert len(re.findall(r'class="gap" [^>]*height="220"', drawn)) == gaps
    assert ("no data" in drawn) is (gaps > 0)


def test_a_gap_of_less_than_a_minute_is_none() -> None:
    known = [True, False, True]
    assert time_chart("t", [("a", [1.0] * 3)], known, (0, 120_000), str).count("<polyline") == 1
    assert time_chart("t", [("a", [1.0] * 3)], known, (0, 180_000), str).count("<polyline") == 2


def test_instants_are_for_people() -> None:
    drawn = chart([True, True])
    assert "2026-11-23 00:00" in drawn
    assert "2026-11-23 02:00 UTC" in drawn


def test_a_missing_bar_is_left_out_and_a_bar_of_zero_is_shown() -> None:
    drawn = bar_chart("t", ("a", "b"), [("x", (0.0, None)), ("y", (2.0, 1.0))], lambda value: f"{value} s")
    assert re.findall(r">([\d.]+ s)<", drawn) == ["0.0 s", "2.0 s", "1.0 s"]


def test_names_are_text_everywhere() -> None:
    bars = bar_chart(EVIL, (EVIL,), [(EVIL, (1.0,))], lambda _: EVIL)
    lines = time_chart(EVIL, [(EVIL, [1.0])], [True], SPAN_MS, lambda _: EVIL)
    rows = table([{EVIL: EVIL}], {EVIL: "new"})
    html = page(EVIL, EVIL, {EVIL: EVIL}, {EVIL: bars + lines + rows})
    assert "<img" not in html
    assert html.count("&lt;img") >= 12
    assert "\x1b" not in html


def test_a_chart_is_well_formed_with_any_name() -> None:
    for drawn in (
        bar_chart(EVIL, ("a",), [(EVIL, (1.0,))], str),
        chart([True, False]),
    ):
        assert ParserCreate().Parse(drawn, True) == 1


def test_a_page_loads_nothing_and_knows_light_and_dark() -> None:
    html = page("t", "h", {}, {"c": chart([True])})
    assert not re.search(r"https?:|src=|<script|<link|url\(|@import", html)
    assert "prefers-color-scheme:dark" in html


def test_a_long_table_is_cut_and_says_so() -> None:
    html = table([{"n": number} for number in range(501)])
    assert html.count("<tr>") == 501
    assert "and 1 more" in html
