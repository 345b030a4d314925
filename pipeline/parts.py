"""From settings to what the streaming job needs of them: the rules of a batch, the topics."""

import json
import os
from typing import Final

from pipeline.cluster.acls import Names
from pipeline.settings.model import Cap, EngineSettings, Settings
from pipeline.stream.micro_batch import BatchRules
from pipeline.throttle.topics import TopicSpec, topic_specs

_UNCAPPED_THROTTLE_MS: Final = 3_600_000


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


def resource_names(settings: Settings) -> Names:
    """What this job works with in the cluster."""
    kafka = settings.kafka
    return Names(kafka.usage_topic, kafka.throttle_topic, kafka.marker_topic, settings.job)


def _longest_slice_ms(cap: Cap, engine: EngineSettings) -> int:
    if cap == "none":
        return _UNCAPPED_THROTTLE_MS
    if cap == "window":
        return engine.rate_span_ms
    return engine.sample_window_ms if cap == "sample_window" else cap
