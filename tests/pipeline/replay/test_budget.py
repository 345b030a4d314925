from dataclasses import replace

import pytest

from pipeline.replay.budget import METRICS, Budget, failures
from pipeline.replay.errors import BadBudget
from pipeline.replay.report import Totals

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
    assert Budget.parse(text).fails(TOTALS) is fails


@pytest.mark.parametrize(
    "text", ["", "newly_throttled", "newly_throttled>", ">3", "new>3", "newly_throttled=3", "newly_throttled>three"]
)
def test_anything_else_is_refused_with_the_metrics_there_are(text: str) -> None:
    with pytest.raises(BadBudget, match="metrics are clients, throttled, newly_throttled"):
        Budget.parse(text)


@pytest.mark.parametrize("metric", METRICS)
def test_every_total_can_be_asked_for(metric: str) -> None:
    budget = Budget.parse(f"{metric}>99999")
    assert not budget.fails(TOTALS)
    assert budget.fails(replace(TOTALS, **{metric: 100_000}))


def test_only_what_failed_is_told_with_its_value() -> None:
    budgets = [Budget.parse("newly_throttled>2"), Budget.parse("throttled>4"), Budget.parse("throttle_seconds>1")]
    assert failures(budgets, TOTALS) == [
        "newly_throttled>2: newly_throttled is 3",
        "throttle_seconds>1: throttle_seconds is 12.5",
    ]
