"""From settings to the parts that decide and hold throttles. Neither Spark nor Kafka is needed for them."""

from typing import Literal

from pipeline.settings.model import EngineSettings, Settings
from pipeline.settings.throttle_caps import throttle_caps
from pipeline.throttle.lifecycle import Slicing
from pipeline.throttle.renew_lead import RenewLead
from quota.engine import QuotaEngine


def new_engine(settings: EngineSettings, scope: Literal["cluster", "broker"]) -> QuotaEngine:
    """An engine that has recorded nothing."""
    return QuotaEngine(
        num_samples=settings.num_samples,
        sample_window_ms=settings.sample_window_ms,
        max_throttle_time=throttle_caps(settings),
        scope=scope,
        carry_debt=settings.carry_debt,
    )


def new_slicing(settings: Settings) -> Slicing:
    """How throttles are cut; the lead is the floor, until it has been measured."""
    return Slicing(
        lead_ms=settings.purgatory.min_renew_lead_ms,
        republish_ms=settings.purgatory.republish_ms,
        caps=throttle_caps(settings.engine),
        sample_window_ms=settings.engine.sample_window_ms,
    )


def new_lead(settings: Settings) -> RenewLead:
    """How long before its end a throttle is looked at."""
    purgatory = settings.purgatory
    return RenewLead(settings.stream.trigger_ms, purgatory.client_lag_ms, purgatory.min_renew_lead_ms)
