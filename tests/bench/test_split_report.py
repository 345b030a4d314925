"""What is made of the seconds of a client that two brokers share."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.split_client import SplitRun, markdown, write_page

MOVE, SECONDS = 100, 200


def run(scope: str, sums: list[float]) -> SplitRun:
    return SplitRun(scope, 3.0, sums, MOVE)


def test_settled_means_begin_late_enough_and_have_no_move_in_them() -> None:
    """Every second has its own value, so a mean says where it begins."""
    settled = run("cluster", [float(second) for second in range(SECONDS)]).settled_means()
    begins = [mean - 24.5 for mean in settled]
    assert begins == [*range(40, 51), *range(140, 151)]


def test_the_means_of_all_half_minutes_are_counted() -> None:
    assert run("cluster", [0.0] * 10 + [3.0] * 15 + [0.0] * 15).all_means == pytest.approx([1.5] * 11)


def test_the_page_gets_the_table_and_a_plot_beside_it_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = "<!-- split: written by `python -m bench split_client` -->", "<!-- split end -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n", encoding="utf-8")
    runs = [run("broker", [2.0] * SECONDS), run("cluster", [1.0] * SECONDS)]
    write_page(page, markdown(runs), runs)
    written = page.read_text(encoding="utf-8")
    assert written.startswith(f"before\n{begin}\n\n![")
    assert written.endswith(f"{markdown(runs)}\n\n{end}\nafter\n")
    assert "| 3 · T | mirror | 2.00 | 2.00–2.00 | 2.00–2.00 |" in written
    plot = ElementTree.parse(tmp_path / "split-client.svg").getroot()  # noqa: S314 - our own
    assert len(list(plot.iter("{http://www.w3.org/2000/svg}polyline"))) == 4
