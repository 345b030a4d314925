"""A broker whose clock is behind is known by the append times of its partitions; one that is right never is."""

import logging
from typing import Final

import pytest

from pipeline.stream.append_clocks import AppendClocks, clocks_text
from tests.log_messages import messages_of

BEGIN_MS: Final = 1_700_000_000_000


def clocks_after(
    intervals_ms: list[int], behind_ms: dict[int, int], *, has_read_all: bool = True, age_ms: int = 0
) -> AppendClocks:
    """Batches that begin at such intervals. Each has a message of each partition, appended right after the one before.

    * `age_ms`: How long before that it was appended in truth, if the batch before has not read all there was.
    """
    clocks, began_ms = AppendClocks(tolerance_ms=2_000), BEGIN_MS
    for interval_ms in intervals_ms:
        times_ms = {partition: began_ms - age_ms - ms for partition, ms in behind_ms.items()}
        began_ms += interval_ms
        clocks.note(began_ms, times_ms, has_read_all)
    return clocks


@pytest.mark.parametrize("intervals_ms", [[500] * 9, [60_000] * 9, [500, 5_000, 90_000, 60, 700, 40_000, 500]])
@pytest.mark.parametrize("behind_ms", [{0: 0, 1: 0}, {0: 0, 1: 15_000}, {0: 700, 1: 1_999}])
def test_a_clock_is_behind_by_what_its_append_times_are_before_the_batch_before(
    intervals_ms: list[int], behind_ms: dict[int, int]
) -> None:
    assert clocks_after(intervals_ms, behind_ms).behind_ms() == behind_ms


def test_of_a_backlog_nothing_is_known() -> None:
    assert clocks_after([500] * 9, {0: 0}, has_read_all=False, age_ms=60_000).behind_ms() == {}


def test_a_few_batches_are_not_enough_and_a_message_that_was_readable_late_is_no_fault() -> None:
    assert clocks_after([500] * 5, {0: 15_000}).behind_ms() == {}
    clocks = clocks_after([500] * 9, {0: 0})
    clocks.note(BEGIN_MS + 5_000, {0: BEGIN_MS - 20_000}, has_read_all=True)
    assert clocks.behind_ms() == {0: 0}


def test_a_partition_without_messages_is_forgotten_after_5_minutes() -> None:
    clocks = clocks_after([500] * 9, {0: 15_000, 1: 0})
    clocks.note(BEGIN_MS + 4_500 + 300_000, {1: BEGIN_MS + 4_500 + 300_000}, has_read_all=True)
    assert set(clocks.behind_ms()) == {0, 1}
    clocks.note(BEGIN_MS + 4_501 + 300_000, {1: BEGIN_MS + 4_501 + 300_000}, has_read_all=True)
    assert set(clocks.behind_ms()) == {1}


@pytest.mark.parametrize(("behind_ms", "lines"), [({0: 0, 1: 2_000}, 0), ({0: 0, 1: 2_001}, 2)])
def test_what_is_behind_by_more_than_the_tolerance_is_logged_once_a_minute(
    behind_ms: dict[int, int], lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        clocks_after([1_000] * 120, behind_ms)
    assert len(messages_of(caplog, "pipeline.stream.append_clocks")) == lines


@pytest.mark.parametrize(
    ("behind_ms", "text"),
    [
        ({0: 0, 1: 15_000, 2: 14_800}, "partitions 1, 2 are up to 15.0 s behind this machine's"),
        ({0: 0, 1: 15_000}, "Fix: set the clock of the brokers that lead these partitions"),
        ({0: 14_000, 1: 15_000}, "all partitions are up to 15.0 s behind this machine's clock"),
    ],
)
def test_the_line_names_the_partitions_and_the_clock_to_set(behind_ms: dict[int, int], text: str) -> None:
    assert text in clocks_text(behind_ms, 2_000)
