"""A pipeline that stalls never looks calm."""

import pytest

from pipeline.dashboard.state import STALLED_AFTER_MS, health
from pipeline.process import FRESH_MS, LATE_AFTER_MS

NOW_MS = 1_700_000_000_000


def batch(age_ms: int) -> dict[str, int]:
    return {"processed_at_ms": NOW_MS - age_ms, "evaluated_at_ms": NOW_MS - age_ms - 300}


@pytest.mark.parametrize(
    ("age_ms", "process", "was_seen", "state"),
    [
        (0, "7", True, "live"),
        (STALLED_AFTER_MS, "7", True, "live"),
        (STALLED_AFTER_MS + 1, "7", True, "stalled"),
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


def test_before_the_first_batch_it_says_how_to_start_the_job() -> None:
    assert health(NOW_MS, None, None, was_seen=False).text.endswith("kquota run.")


@pytest.mark.parametrize(
    ("age_ms", "wait_age_ms", "state", "title"),
    [
        (STALLED_AFTER_MS, None, "live", "Live"),
        (STALLED_AFTER_MS, LATE_AFTER_MS + 1, "live", "Live"),
        (20_000, 0, "quiet", "Quiet: no usage for 20 s"),
        (20_000, 2_900, "quiet", "Quiet: no usage for 20 s"),
        (20_000, FRESH_MS, "quiet", "Quiet: no usage for 20 s"),
        (20_000, 3_100, "stalled", "No micro-batch for 20 s"),
        (20_000, LATE_AFTER_MS, "stalled", "No micro-batch for 20 s"),
        (20_000, LATE_AFTER_MS + 1, "hung", "The job hangs: no micro-batch for 20 s"),
        (20_000, -500, "quiet", "Quiet: no usage for 20 s"),  # the job's clock is ahead
        (20_000, -3_100, "stalled", "No micro-batch for 20 s"),  # the clock was set back since
        (20_000, None, "stalled", "No micro-batch for 20 s"),
        (None, 0, "starting", "The job has written no micro-batch yet"),
        (None, LATE_AFTER_MS + 1, "hung", "The job has written no micro-batch yet"),
    ],
)
def test_a_job_that_waits_for_usage_is_quiet_and_one_that_does_not_hangs(
    age_ms: int | None, wait_age_ms: int | None, state: str, title: str
) -> None:
    waited_ms = None if wait_age_ms is None else NOW_MS - wait_age_ms
    found = health(NOW_MS, None if age_ms is None else batch(age_ms), "7", was_seen=True, waited_ms=waited_ms)
    assert (found.state, found.title) == (state, title)
    assert ("throttles end by themselves" in found.text) == (state in {"hung", "stalled"} and age_ms is not None)


@pytest.mark.parametrize(
    ("wait_age_ms", "text"),
    [
        (3_100, "The job's process 7 last looked for usage 3 s ago: a batch takes long, or it hangs."),
        (-3_100, "The job's process 7 runs, and was not yet seen to wait for usage: it starts, or hangs."),
        (None, "The job's process 7 runs, and was not yet seen to wait for usage: it starts, or hangs."),
    ],
)
def test_without_a_fresh_beat_it_says_what_is_not_known(wait_age_ms: int | None, text: str) -> None:
    waited_ms = None if wait_age_ms is None else NOW_MS - wait_age_ms
    assert health(NOW_MS, batch(20_000), "7", was_seen=True, waited_ms=waited_ms).text.startswith(text)


def test_of_a_process_that_is_gone_a_beat_says_nothing() -> None:
    assert health(NOW_MS, batch(20_000), None, was_seen=True, waited_ms=NOW_MS).state == "down"


def test_what_can_not_be_read_goes_before_all_else() -> None:
    found = health(NOW_MS, batch(0), "7", was_seen=True, failure="'usage' is damaged")
    assert (found.state, found.text) == ("unreadable", "'usage' is damaged")


def test_age_and_lag_are_told() -> None:
    found = health(NOW_MS, batch(1_200), "7", was_seen=True)
    assert (found.last_batch_age_ms, found.lag_ms, found.process) == (1_200, 300, "7")


def test_how_old_it_is_stands_in_the_title() -> None:
    assert health(NOW_MS, batch(125_000), "7", was_seen=True).title == "No micro-batch for 2 min 5 s"
    assert "2 min 5 s ago" in health(NOW_MS, batch(125_000), None, was_seen=True).text


@pytest.mark.parametrize(("known_for_ms", "state"), [(5_000, "live"), (5_001, "hung")])
def test_a_batch_of_a_clock_that_was_ahead_is_as_old_as_it_has_been_known(known_for_ms: int, state: str) -> None:
    batch = {"processed_at_ms": NOW_MS + 3_600_000, "evaluated_at_ms": NOW_MS + 3_600_000}
    found = health(NOW_MS, batch, "7", was_seen=True, waited_ms=NOW_MS - 60_000, collected_ms=NOW_MS - known_for_ms)
    assert (found.state, found.last_batch_age_ms, found.ahead_ms) == (state, known_for_ms, 3_600_000)
