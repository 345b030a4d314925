"""From settings to the parts of the job that have no I/O."""

import json
import os
from typing import Final, Literal

from pipeline.settings.model import Cap, EngineSettings, Settings
from pipeline.stream.micro_batch import BatchRules
from pipeline.throttle.lead import RenewLead
from pipeline.throttle.lifecycle import Slicing
from pipeline.throttle.topics import TopicSpec, topic_specs
from quota.engine import QuotaEngine
from quota.throttle_time import ThrottleCaps

_UNCAPPED_THROTTLE_MS: Final = 3_600_000


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


def new_batch_rules(settings: Settings, cluster: str) -> BatchRules:
    """What a micro-batch needs of the settings."""
    return BatchRules(
        cluster=cluster,
        ring_ms=settings.engine.num_samples * settings.engine.sample_window_ms,
        max_decision_age_ms=settings.stream.max_decision_age_ms,
        engine_settings=json.dumps(settings.engine.model_dump(mode="json"), separators=(",", ":")),
    )


def wanted_topics(settings: Settings) -> tuple[TopicSpec, TopicSpec, TopicSpec]:
    """The three topics of this job, as they must be."""
    engine, kafka = settings.engine, settings.kafka
    caps = (engine.producer_byte_rate_cap, engine.consumer_byte_rate_cap, engine.request_percentage_cap)
    return topic_specs(
        cores=len(os.sched_getaffinity(0)),
        longest_throttle_ms=max(_longest_slice_ms(cap, engine) for cap in caps),
        usage_topic=kafka.usage_topic,
        throttle_topic=kafka.throttle_topic,
        marker_topic=kafka.marker_topic,
    )


def _slice_cap(cap: Cap, engine: EngineSettings) -> int | Literal["window"] | None:
    if cap == "sample_window":
        return engine.sample_window_ms
    if cap == "none":
        return None
    return cap


def _longest_slice_ms(cap: Cap, engine: EngineSettings) -> int:
    if cap == "none":
        return _UNCAPPED_THROTTLE_MS
    if cap == "window":
        return (engine.num_samples + 1) * engine.sample_window_ms
    return engine.sample_window_ms if cap == "sample_window" else cap
