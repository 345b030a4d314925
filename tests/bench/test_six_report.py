"""What is made of the counts of six clients."""

from pathlib import Path

import pytest

from bench.six_clients import PHASES, Offender, SixRun, markdown, write_page

T = 1000.0


@pytest.fixture
def run() -> SixRun:
    """One offender that starts at 65 s, gets nothing for 45 s, and then T from there on, whatever its quota is."""
    begins = [0.0, 30.0, 65.0, 140.0, 200.0]
    sent = Offender([0.0, 110.0, 290.0], [0.0, 0.0, 180.0 * T], 500.0)
    return SixRun(T, begins, {"one": sent}, [[1.0, 2.0], [1.0, 8.0], [1.0, 4.0], [3.0], [5.0]], 0.0, [1.0, 2.0])


def test_rates_are_judged_from_their_second_on_and_by_the_quota_of_the_phase(run: SixRun) -> None:
    assert [run.judged("one", phase) for phase in (2, 3, 4)] == pytest.approx([1, 0.5, 1])
    assert run.tens("one", 2) == pytest.approx([0, 0, 0, 0, 0.5, 1, 1])


def test_the_page_gets_a_row_for_each_phase_and_the_rest_of_it_stays(run: SixRun, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = "<!-- six: written by `python -m bench six_clients` -->", "<!-- six end -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    write_page(page, markdown(run))
    text = page.read_text()
    assert text.startswith(f"before\n{begin}\n\n|  | offender |")
    assert text.endswith(f"median 1.5 s, longest 2.0 s.\n\n{end}\nafter\n")
    assert "| under T | one | 0.00 0.00 0.00 0.00 0.50 1.00 1.00 | 1.00 from 45 s on |" in text
    assert f"| {PHASES[2].name} | 2.5 and 4.0 ms of 2 | 1.99 | 0.50 |" in text
