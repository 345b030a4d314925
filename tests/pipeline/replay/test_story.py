"""A throttle in one line: who, why, until when, and how to ask for more."""

from typing import Any

import pytest

from pipeline.command_line import command_text
from pipeline.replay.story import free_since_ms, held_until_ms, now_line
from pipeline.throttle.shapes import line_of, line_with_command
from schemas.names import ClientKey
from tests.pipeline.throttle.factories import Reason, violation, written_row

NOON_MS = 1_700_049_600_000

FIGURES: dict[str, Any] = {
    "observed": 5_200_000.0,
    "bound": 1_000_000.0,
    "window_ms": 10_400,
    "owed_ms": 33_300,
    "level": 1,
}


def line(cause: str, action: str = "throttle", throttle_time_ms: int = 10_400, **overrides: Any) -> str:
    publication = violation(throttle_time_ms=throttle_time_ms, reason=Reason(**{**FIGURES, **overrides}))
    row = written_row(publication, cause=cause, action=action, throttled_until_ms=NOON_MS + 17_850)
    return line_of(row, quota_version=3)


def test_a_throttle_in_one_line() -> None:
    assert line("violation") == (
        "throttle alice/etl producer_byte_rate O 5.2 > T 1.0 MB/s (level 1, quotas v3) W 10.4 s X 43.7 s, "
        "capped 10.4 s, until 12:00:17.8"
    )
    assert line("extended").startswith("extend   alice/etl producer_byte_rate ")
    assert line("expired", "release", owed_ms=94, observed=1_090_000.0) == (
        "release  alice/etl producer_byte_rate O 1.1 > T 1.0 MB/s (expired, owes 94 ms)"
    )


def test_a_name_can_not_write_a_line_of_its_own() -> None:
    publication = violation(key=ClientKey("b\x07", "u\x1b", "c\nrelease  alice/etl"), reason=Reason(**FIGURES))
    assert line_of(written_row(publication), 3).startswith(r"throttle u\x1b/c\nrelease  alice/etl@b\x07 producer")


def test_a_throttle_of_a_user_names_all_its_client_ids_and_who_tells_more() -> None:
    record = written_row(violation(decision_id="0123456789abcdef"), client_id=None)
    told = line_with_command(record, 3)
    assert told.startswith("throttle alice/* producer_byte_rate ")
    assert told.endswith(f" · {command_text('throttles', 'explain', '01234567')}")


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"observed": 1_500.0, "bound": 999.0}, "O 1500.0 > T 999.0 B/s"),
        ({"observed": 1_500.0, "bound": 1_000.0}, "O 1.5 > T 1.0 kB/s"),
        ({"observed": 100_030.0, "bound": 100_000.0}, "O 100.03 > T 100.00 kB/s"),
        ({"observed": 99_999.0, "bound": 100_000.0}, "O 100.0 ≤ T 100.0 kB/s"),
        ({"observed": 2e9, "bound": 1e9}, "O 2.0 > T 1.0 GB/s"),
        ({"observed": 51.0, "bound": 50.0, "quota_type": "request_percentage"}, "O 51.0 > T 50.0 %"),
        ({"observed": 0.0, "bound": None, "level": None}, "O 0.0 B/s, no bound (quotas"),
        ({"observed": 900_000.0, "tokens": -3.8e6}, "O 0.9 ≤ T 1.0 MB/s, debt 3.8 MB (level"),
        (
            {"observed": 9.0, "bound": 50.0, "quota_type": "request_percentage", "tokens": -190.0},
            "O 9.0 ≤ T 50.0 %, debt 190.0 %·s (level",
        ),
    ],
)
def test_rate_and_bound_share_the_unit_of_the_bound(figures: dict[str, Any], expected: str) -> None:
    assert expected in line("violation", **figures)


@pytest.mark.parametrize(
    ("actions", "running_ms", "now_ms", "said"),
    [
        (["throttle"], None, 10_000, "not held since 00:00:10.0"),
        (["throttle"], 11_000, 10_000, "held until 00:00:11.0, 1.0 s left"),
        (["throttle"], None, 9_000, "held until 00:00:10.0, 1.0 s left"),
        (["throttle", "release"], None, 9_000, "not held since 00:00:10.0"),
    ],
    ids=["it has ended", "extended meanwhile", "read a moment later", "released ahead of the clock"],
)
def test_how_a_client_is_held_now_agrees_with_its_newest_record(
    actions: list[str], running_ms: int | None, now_ms: int, said: str
) -> None:
    who = {"user": "alice", "client_id": "etl", "throttle_time_ms": 0}
    events = [{**who, "action": action, "throttled_until_ms": 10_000} for action in actions]
    running = [] if running_ms is None else [{**who, "action": "throttle", "throttled_until_ms": running_ms}]
    until_ms = held_until_ms(running, events, now_ms, "alice", "etl")
    assert now_line(until_ms, free_since_ms(events), now_ms) == f"now: {said}"
