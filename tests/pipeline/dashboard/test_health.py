"""A pipeline that stalls never looks calm."""

import pytest

from pipeline.dashboard.health import STALLED_AFTER_MS, health

NOW_MS = 1_700_000_000_000


def batch(age_ms: int) -> dict[str, int]:
    return {"processed_at_ms": NOW_MS - age_ms, "evaluated_at_ms": NOW_MS - age_ms - 300}


@pytest.mark.parametrize(
    ("age_ms", "process", "was_seen", "state"),
    [
        (0, "7", True, "live"),
        (STALLED_AFTER_MS, "7", True, "live"),
        (STALLED_AFTER_MS + 1, "7", True, "quiet"),
        (0, None, True, "down"),  # killed just now
        (STALLED_AFTER_MS + 1, None, True, "down"),
        (0, None, False, "live"),  # a job of another machine
        (STALLED_AFTER_MS, None, False, "live"),
        (STALLED_AFTER_MS + 1, None, False, "stalled"),
        (-500, "7", True, "live"),  # the job's clock is ahead
        (None, "7", True, "starting"),
        (None, None, False, "starting"),
    ],
)
def test_the_state_follows_from_batch_and_process(
    age_ms: int | None, process: str | None, was_seen: bool, state: str
) -> None:
    found = health(NOW_MS, None if age_ms is None else batch(age_ms), process, was_seen=was_seen)
    assert found.state == state
    assert (found.text == "") == (state == "live")


def test_what_can_not_be_read_goes_before_all_else() -> None:
    found = health(NOW_MS, batch(0), "7", was_seen=True, failure="'usage' is damaged")
    assert (found.state, found.text) == ("unreadable", "'usage' is damaged")


def test_age_and_lag_are_told() -> None:
    found = health(NOW_MS, batch(1_200), "7", was_seen=True)
    assert (found.last_batch_age_ms, found.lag_ms, found.process) == (1_200, 300, "7")


def test_how_old_it_is_stands_in_the_title() -> None:
    assert health(NOW_MS, batch(125_000), "7", was_seen=True).title == "No micro-batch for 2 min 5 s"
    assert "2 min 5 s ago" in health(NOW_MS, batch(125_000), None, was_seen=True).text
