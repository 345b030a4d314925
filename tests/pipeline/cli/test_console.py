"""What the job writes to its log: a line for each throttle record, unless there are very many at once."""

import logging

import pyarrow as pa
import pytest

from pipeline.cli.services import MOST_LINES, log_throttles
from pipeline.throttle.explain import line_with_command
from pipeline.throttle.publisher import write_down
from pipeline.throttle.shapes import Written, records_of
from tests.pipeline.throttle.factories import publications, violation
from tests.pipeline.throttle.test_publisher import NOW


def written(count: int) -> pa.Table:
    news = publications(*(violation(throttle_time_ms=number + 1) for number in range(count)))
    return write_down(news, 7, NOW)


def test_written_records_can_be_read_as_objects() -> None:
    expected = [Written(violation(throttle_time_ms=n + 1), 7 + n, NOW.wall_ms + n + 1) for n in range(3)]
    assert list(records_of(written(3))) == expected


@pytest.mark.parametrize("more", [-1, 0, 1, 300])
def test_every_record_has_a_line_up_to_a_number_at_once(more: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pipeline.job")
    records = written(MOST_LINES + more)
    log_throttles(records, 3)
    told = [line_with_command(record, 3) for record in records_of(records.slice(0, MOST_LINES))]
    rest = [f"and {more} more throttle records at the same time: see throttle_events"] if more > 0 else []
    assert caplog.messages == told + rest


def test_nothing_is_made_for_a_log_that_nobody_writes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pipeline.job")
    log_throttles(written(3), 3)
    assert caplog.messages == []
