"""From settings to the parts that decide and hold throttles. Neither Spark nor Kafka is needed for them."""

from typing import Literal

from pipeline.settings.model import Cap, EngineSettings, Settings
from pipeline.throttle.lifecycle import Slicing
from pipeline.throttle.renew_lead import RenewLead
from quota.engine import QuotaEngine
from quota.throttle_time import ThrottleCaps


def new_engine(settings: EngineSettings, scope: Literal["cluster", "broker"]) -> QuotaEngine:
    """An engine that has recorded nothing."""
    return QuotaEngine(
        num_samples=settings.num_samples,
        sample_window_ms=settings.sample_window_ms,
        max_throttle_time=ThrottleCaps(
            producer_byte_rate=settings.producer_byte_rate_cap,
            consumer_byte_rate=settings.consumer_byte_rate_cap,
            request_percentage=settings.request_percentage_cap,
        ),
        scope=scope,
        carry_debt=settings.carry_debt,
    )


def new_slicing(settings: Settings) -> Slicing:
    """How throttles are cut; the lead is the floor, until it has been measured."""
    engine = settings.engine
    return Slicing(
        lead_ms=settings.purgatory.min_renew_lead_ms,
        republish_ms=settings.purgatory.republish_ms,
        caps={
            "producer_byte_rate": _slice_cap(engine.producer_byte_rate_cap, engine),
            "consumer_byte_rate": _slice_cap(engine.consumer_byte_rate_cap, engine),
            "request_percentage": _slice_cap(engine.request_percentage_cap, engine),
        },
    )


def new_lead(settings: Settings) -> RenewLead:
    """How long before its end a throttle is looked at."""
    purgatory = settings.purgatory
    return RenewLead(settings.stream.trigger_ms, purgatory.client_lag_ms, purgatory.min_renew_lead_ms)


def _slice_cap(cap: Cap, engine: EngineSettings) -> int | Literal["window"] | None:
    if cap == "sample_window":
        return engine.sample_window_ms
    if cap == "none":
        return None
    return cap
