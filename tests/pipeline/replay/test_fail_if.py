from dataclasses import replace

import pytest

from pipeline.errors import UsageError
from pipeline.replay.report import METRICS, FailCondition, Totals, failures

TOTALS = Totals(
    clients=10,
    throttled=4,
    newly_throttled=3,
    no_longer_throttled=1,
    windows_throttled=40,
    throttle_seconds=12.5,
    throttle_seconds_change=-2.5,
    bytes_deferred=7_000,
    bytes_deferred_change=500,
)


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("newly_throttled>2", True),
        ("newly_throttled>3", False),
        ("newly_throttled >= 3", True),
        ("newly_throttled<3", False),
        ("newly_throttled<=3", True),
        ("newly_throttled==3", True),
        ("newly_throttled!=3", False),
        (" throttle_seconds > 12.4 ", True),
        ("throttle_seconds_change<-2", True),
        ("bytes_deferred>1e4", False),
    ],
)
def test_a_comparison_that_holds_fails_the_budget(text: str, fails: bool) -> None:
    assert FailCondition.parse(text).is_met(TOTALS) is fails


@pytest.mark.parametrize(
    "text", ["", "newly_throttled", "newly_throttled>", ">3", "new>3", "newly_throttled=3", "newly_throttled>three"]
)
def test_anything_else_is_refused_with_the_metrics_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="metrics are clients, throttled, newly_throttled"):
        FailCondition.parse(text)


@pytest.mark.parametrize("metric", METRICS)
def test_every_total_can_be_asked_for(metric: str) -> None:
    budget = FailCondition.parse(f"{metric}>99999")
    assert not budget.is_met(TOTALS)
    assert budget.is_met(replace(TOTALS, **{metric: 100_000}))


def test_only_what_failed_is_told_with_its_value() -> None:
    budgets = [
        FailCondition.parse("newly_throttled>2"),
        FailCondition.parse("throttled>4"),
        FailCondition.parse("throttle_seconds>1"),
    ]
    assert failures(budgets, TOTALS) == [
        "newly_throttled>2: newly_throttled is 3",
        "throttle_seconds>1: throttle_seconds is 12.5",
    ]
