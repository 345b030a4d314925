"""What kquota uses in the cluster, from its settings: its topics and the names of its resources."""

import os

from pipeline.cluster.acls import Names
from pipeline.cluster.topics import TopicSpec, alerts_spec, topic_specs
from pipeline.settings.model import Settings
from pipeline.settings.throttle_caps import longest_throttle_ms


def wanted_topics(
    settings: Settings, cores: int | None = None, longest_slice_ms: int | None = None
) -> tuple[TopicSpec, TopicSpec, TopicSpec]:
    """The three topics of this job, as they must be.

    Args:
        settings: Of the job.
        cores: Of the machines it runs on; None = those of this machine that this process may use.
        longest_slice_ms: The largest cap of a throttle; None = by the settings.
    """
    kafka = settings.kafka
    return topic_specs(
        cores=cores or len(os.sched_getaffinity(0)),
        longest_throttle_ms=longest_slice_ms or longest_throttle_ms(settings.engine),
        usage_topic=kafka.usage_topic,
        throttle_topic=kafka.throttle_topic,
        marker_topic=kafka.marker_topic,
    )


def alerts_topics(settings: Settings) -> tuple[TopicSpec, ...]:
    """The topic that is told of alerts, if the settings name one; the job does not use it."""
    topic = settings.alerts.topic
    return () if topic is None else (alerts_spec(topic),)


def resource_names(settings: Settings) -> Names:
    """The names of the resources that this job and what runs beside it use in the cluster."""
    kafka = settings.kafka
    return Names(kafka.usage_topic, kafka.throttle_topic, kafka.marker_topic, settings.job, settings.alerts.topic)
