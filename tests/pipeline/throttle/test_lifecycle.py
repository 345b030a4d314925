"""How long a throttle holds, and what an edit makes of it; the boundaries are in tests/quota/test_throttle_time.py."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.throttle.lifecycle import Running, check, check_after_edit, violations_to_publish
from quota.throttle_time import Slicing, Step, ThrottleCaps
from tests.pipeline.throttle.factories import Reason, asked, claims, due, violation

SLICING = Slicing(
    lead_ms=300,
    min_hold_ms=1_000,
    caps=ThrottleCaps(producer_byte_rate=1_000, consumer_byte_rate="window", request_percentage="none"),
    sample_window_ms=1_000,
)
MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("throttle_time_ms", "owed_ms", "quota_type", "told_ms"),
    [
        (999, 999, "consumer_byte_rate", []),
        (1_000, 1_000, "consumer_byte_rate", [1_000]),
        (3, 1_700, "consumer_byte_rate", [1_700]),
        (10_000, 90_000, "consumer_byte_rate", [10_000]),
        (MOST, MOST, "request_percentage", [1 << 52]),
    ],
    ids=["too short", "a second", "its bucket owes more", "capped", "beyond all time"],
)
def test_a_violation_holds_for_the_larger_of_x_and_what_is_owed(
    throttle_time_ms: int, owed_ms: int, quota_type: str, told_ms: list[int]
) -> None:
    violated = violation(throttle_time_ms=throttle_time_ms, reason=Reason(owed_ms=owed_ms, quota_type=quota_type))
    running = Running(np.full(1, None, np.object_), np.array([False]), np.array([0]))
    assert violations_to_publish(asked(violated), running, 5_000, SLICING)[1].tolist() == told_ms


def test_of_several_clients_each_hears_what_is_new_to_it() -> None:
    running = Running(np.full(3, None, np.object_), np.array([False, True, True]), np.array([0, 10_000, 14_000]))
    news, _ = violations_to_publish(asked(*[violation(throttle_time_ms=9_000)] * 3), running, 5_000, SLICING)
    assert news.tolist() == [0, 1], "the third one would end at the same time"


@pytest.mark.parametrize(
    ("quota_type", "lead_ms", "owed_ms", "slice_ms"),
    [
        ("producer_byte_rate", 300, 90_000, 1_000),
        ("producer_byte_rate", 400, 90_000, 1_200),
        ("consumer_byte_rate", 300, 90_000, 10_000),
        ("request_percentage", 300, 90_000, 90_000),
        ("request_percentage", 300, MOST, 1 << 52),
    ],
    ids=["cap", "three leads are the floor of a cap", "window", "no cap", "beyond all time"],
)
def test_a_renewal_is_as_long_as_its_cap_allows(quota_type: str, lead_ms: int, owed_ms: int, slice_ms: int) -> None:
    owes = claims(Reason(owed_ms=owed_ms, quota_type=quota_type))
    result = check(due(), owes, np.array([9_700]), replace(SLICING, lead_ms=lead_ms))
    assert (result.steps.tolist(), result.slices_ms.tolist()) == ([Step.HOLD], [slice_ms])


@pytest.mark.parametrize(
    ("after", "step", "slice_ms"),
    [
        ({"owed_ms": 0, "bound": None, "level": None}, Step.RELEASE, 0),
        ({"owed_ms": 400, "bound": 1_500.0}, Step.RELEASE, 0),
        ({"owed_ms": 4_000, "bound": 900.0, "quota_type": "request_percentage"}, Step.HOLD, 4_000),
        ({"owed_ms": 4_001, "bound": 1_001.0}, Step.WAIT, 0),
        ({"owed_ms": 6_000, "bound": 900.0}, Step.HOLD, 1_000),
        ({"owed_ms": 10, "bound": 900.0}, Step.WAIT, 0),
    ],
    ids=["no bound left", "raised", "of another type", "raised, as much owed", "lowered", "lowered, less owed"],
)
def test_an_edit_releases_shortens_or_prolongs(after: dict[str, Any], step: Step, slice_ms: int) -> None:
    result = check_after_edit(due(), claims(Reason(**after)), np.array([5_000]), SLICING, np.array([False]))
    assert (result.steps.tolist(), result.slices_ms.tolist()) == ([step], [slice_ms])
