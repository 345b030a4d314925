"""What the rig reads from a job's log."""

from datetime import UTC, datetime

from tests.faults.rig import starts_in

LOG = [
    "23:59:59.500 INFO throttle.purgatory took up 3 running throttles",
    "00:00:01.000 INFO stream.query batch_id=1",
    "00:00:02.250 INFO throttle.purgatory took up 1 running throttles",
]


def test_the_log_tells_when_running_throttles_were_taken_up_also_around_midnight() -> None:
    now = datetime(2026, 11, 22, 0, 5, tzinfo=UTC).timestamp()
    starts = [datetime.fromtimestamp(start_ms / 1_000, UTC).isoformat() for start_ms in starts_in(LOG, now)]
    assert starts == ["2026-11-21T23:59:59.500000+00:00", "2026-11-22T00:00:02.250000+00:00"]
