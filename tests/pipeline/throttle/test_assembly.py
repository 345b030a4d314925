"""The settings of the engine reach the engine: each of them, also those that a test's load may not feel."""

from typing import Any

import pytest

from pipeline.settings.model import EngineSettings
from pipeline.throttle.assembly import engine_of
from quota.engine import QuotaEngine
from quota.throttle_time import ThrottleCaps


class GivenEngine(QuotaEngine):
    """An engine that remembers what it was made with."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.given = given


DEFAULTS = {
    "num_samples": 11,
    "sample_window_ms": 1_000,
    "max_throttle_time": ThrottleCaps("window", "window", "sample_window"),
    "scope": "cluster",
    "carry_debt": True,
}


@pytest.mark.parametrize(
    ("setting", "argument"),
    [
        ({"num_samples": 4}, {"num_samples": 4}),
        ({"sample_window_ms": 250}, {"sample_window_ms": 250}),
        ({"carry_debt": False}, {"carry_debt": False}),
        ({"producer_byte_rate_cap": 70}, {"max_throttle_time": ThrottleCaps(70, "window", "sample_window")}),
        ({"consumer_byte_rate_cap": "none"}, {"max_throttle_time": ThrottleCaps("window", "none", "sample_window")}),
        ({"request_percentage_cap": "window"}, {"max_throttle_time": ThrottleCaps("window", "window", "window")}),
        ({}, {}),
    ],
)
def test_each_setting_reaches_the_engine(setting: dict[str, Any], argument: dict[str, Any]) -> None:
    engine = engine_of(GivenEngine, EngineSettings(**setting), "cluster")
    assert engine.given == {**DEFAULTS, **argument}


def test_the_scope_reaches_the_engine() -> None:
    assert engine_of(GivenEngine, EngineSettings(), "broker").given["scope"] == "broker"
