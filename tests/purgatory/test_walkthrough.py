"""The printed walk-through is the published example."""

import pytest

from purgatory.walkthrough import lines, main


def test_the_published_example_reads_poll_by_poll() -> None:
    told = lines([9, 88, 222, 520, 521, 522], tick_ms=1, wheel_size=10)
    assert told[0] == "tick 1 ms, 10 buckets per level, clock 0"
    assert told[4].split() == ["add", "222", "L3·2@200"]
    assert "queue        9, 80, 200, 500" in told
    assert [int(line.split()[0]) for line in told[-10:]] == [9, 80, 88, 200, 220, 222, 500, 520, 521, 522]
    assert told[-7].endswith("222: L3·2@200 -> L2·2@220")


def test_a_task_that_is_due_when_added_is_shown_as_due(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", "7", "--tick", "5", "--wheel-size", "4"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[2].split() == ["add", "0", "due"]
    assert printed[3].split() == ["add", "7", "L1·1@5"]
