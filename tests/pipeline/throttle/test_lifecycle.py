"""The life of a throttle at its boundaries: below, equal, above, capped, zero."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.throttle.lifecycle import CheckResult, Running, Throttles, check, check_after_edit, violations_to_publish
from quota.throttle_time import Slicing, Step, ThrottleCaps
from tests.pipeline.throttle.factories import Publication, Reason, asked, claims, due, reason, violation

SLICING = Slicing(
    lead_ms=300,
    min_hold_ms=1_000,
    caps=ThrottleCaps(producer_byte_rate=1_000, consumer_byte_rate="window", request_percentage="none"),
    sample_window_ms=1_000,
)


def told(violated: Publication, running_until_ms: int | None, now_ms: int = 5_000) -> list[int]:
    """The slice that a client hears of after a violation."""
    is_held = running_until_ms is not None
    running = Running(np.full(1, None, np.object_), np.array([is_held]), np.array([running_until_ms or 0]))
    slices_ms: list[int] = violations_to_publish(asked(violated), running, now_ms, SLICING)[1].tolist()
    return slices_ms


def checked(throttle: Throttles, owes: Reason, at_ms: int, slicing: Slicing = SLICING) -> tuple[Step, int]:
    return told_by(check(throttle, claims(owes), np.array([at_ms]), slicing))


def told_by(result: CheckResult) -> tuple[Step, int]:
    return Step(result.steps[0]), int(result.slices_ms[0])


@pytest.mark.parametrize(
    ("throttle_time_ms", "is_news"),
    [(0, False), (4_999, False), (5_999, False), (6_000, True), (60_000, True)],
    ids=["nothing", "ends sooner", "later by 1 ms less", "later by exactly a second", "much later"],
)
def test_a_held_client_hears_of_a_violation_only_if_it_ends_clearly_later(throttle_time_ms: int, is_news: bool) -> None:
    assert bool(told(violation(throttle_time_ms=throttle_time_ms), 10_000)) is is_news


@pytest.mark.parametrize(
    ("later_by_ms", "is_news"),
    [(2_999, False), (3_000, True)],
    ids=["below", "exactly a tenth of the slice"],
)
def test_a_long_extension_must_end_later_by_a_tenth_of_its_length(later_by_ms: int, is_news: bool) -> None:
    assert bool(told(violation(throttle_time_ms=30_000), 35_000 - later_by_ms)) is is_news


@pytest.mark.parametrize(
    ("throttle_time_ms", "owed_ms", "told_ms"),
    [(999, 999, []), (1_000, 1_000, [1_000]), (3, 1_700, [1_700]), (10_000, 90_000, [10_000])],
    ids=["too short", "a second", "its bucket owes more", "capped"],
)
def test_a_violation_holds_for_the_larger_of_x_and_what_is_owed(
    throttle_time_ms: int, owed_ms: int, told_ms: list[int]
) -> None:
    about = reason(owed_ms=owed_ms, quota_type="consumer_byte_rate")
    assert told(violation(throttle_time_ms=throttle_time_ms, reason=about), None) == told_ms


def test_of_several_clients_each_hears_what_is_new_to_it() -> None:
    running = Running(np.full(3, None, np.object_), np.array([False, True, True]), np.array([0, 10_000, 14_000]))
    news, _ = violations_to_publish(asked(*[violation(throttle_time_ms=9_000)] * 3), running, 5_000, SLICING)
    assert news.tolist() == [0, 1], "the third one would end at the same time"


@pytest.mark.parametrize(
    ("owed_ms", "renewed_ms"),
    [(0, None), (300, None), (1_299, None), (1_300, 1_000), (50_000, 1_000)],
    ids=["nothing owed", "what is left", "1 ms less", "exactly a second longer", "capped"],
)
def test_a_look_renews_what_owes_longer_than_is_left(owed_ms: int, renewed_ms: int | None) -> None:
    expected = (Step.WAIT, 0) if renewed_ms is None else (Step.HOLD, renewed_ms)
    assert checked(due(), reason(owed_ms=owed_ms), 9_700) == expected


@pytest.mark.parametrize(
    ("quota_type", "lead_ms", "expected_ms"),
    [
        ("producer_byte_rate", 300, 1_000),
        ("producer_byte_rate", 400, 1_200),
        ("consumer_byte_rate", 300, 10_000),
        ("request_percentage", 300, 90_000),
    ],
    ids=["cap", "three leads are the floor of a cap", "window", "no cap"],
)
def test_a_renewal_is_as_long_as_its_cap_allows(quota_type: str, lead_ms: int, expected_ms: int) -> None:
    slicing = replace(SLICING, lead_ms=lead_ms)
    owes = reason(owed_ms=90_000, quota_type=quota_type)
    assert checked(due(), owes, 9_700, slicing) == (Step.HOLD, expected_ms)


def test_a_throttle_beyond_all_time_has_an_end() -> None:
    owes = reason(owed_ms=2**63 - 1, quota_type="request_percentage")
    assert checked(due(), owes, 9_700) == (Step.HOLD, 1 << 52)
    assert told(violation(throttle_time_ms=2**63 - 1, reason=owes), None) == [1 << 52]


@pytest.mark.parametrize(
    ("owed_ms", "expected"),
    [(0, (Step.RELEASE, 0)), (1_000, (Step.RELEASE, 0)), (1_001, (Step.HOLD, 1_000)), (50_000, (Step.HOLD, 1_000))],
    ids=["nothing owed", "exactly min_hold_ms", "1 ms more", "capped"],
)
def test_an_end_is_looked_at_too(owed_ms: int, expected: tuple[Step, int]) -> None:
    assert checked(due(due_ms=10_000), reason(owed_ms=owed_ms), 10_000) == expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"owed_ms": 0, "bound": None, "level": None}, (Step.RELEASE, 0)),
        ({"owed_ms": 0, "bound": 9_000.0}, (Step.RELEASE, 0)),
        ({"owed_ms": 400, "bound": 1_500.0}, (Step.RELEASE, 0)),
        ({"owed_ms": 4_000, "bound": 1_500.0, "quota_type": "request_percentage"}, (Step.HOLD, 4_000)),
        ({"owed_ms": 4_001, "bound": 1_001.0}, None),
        ({"owed_ms": 5_000, "bound": 1_001.0}, None),
        ({"owed_ms": 5_999, "bound": 900.0}, None),
        ({"owed_ms": 6_000, "bound": 900.0}, (Step.HOLD, 1_000)),
        ({"owed_ms": 10, "bound": 900.0}, None),
    ],
    ids=[
        "no bound left: released",
        "raised, nothing owed: released",
        "raised, less than min_hold_ms owed: released",
        "raised, less owed: shortened to it",
        "raised, shorter by 1 ms less than min_hold_ms: left",
        "raised, the same owed: left",
        "lowered, more owed by less than min_hold_ms: left",
        "lowered, more owed: renewed, capped",
        "lowered, less owed: never shortened",
    ],
)
def test_an_edit_releases_shortens_or_prolongs(after: dict[str, Any], expected: tuple[Step, int] | None) -> None:
    result = check_after_edit(due(), claims(reason(**after)), np.array([5_000]), SLICING, np.array([False]))
    assert told_by(result) == (expected or (Step.WAIT, 0))
