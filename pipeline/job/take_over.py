"""Taking over from an earlier driver, the one step of a start that changes what others see, and its checks."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from pipeline.clock import Clock
from pipeline.cluster.topic_ids import Ids, is_other, refuse_other_throttle_topics, refuse_other_usage_topic
from pipeline.errors import UsageError
from pipeline.failpoints import failpoint
from pipeline.settings.model import Settings
from pipeline.stream.checkpoint import Checkpoint, Span, refuse_gaps
from pipeline.stream.job_tables import DriverEpoch, JobTables
from pipeline.stream.recovery import Recovered, rebuild
from pipeline.tables.object_store import has_scheme
from pipeline.tables.quotas.source import QuotaSource
from pipeline.throttle.assembly import Enforcement


def take_over(
    tables: JobTables,
    epoch: DriverEpoch,
    quotas: QuotaSource,
    enforcement: Enforcement,
    clock: Clock,
    settings: Settings,
    now: Ids,
    takes_topic: bool = False,
) -> Recovered:
    """Fence earlier drivers in the tables, rebuild the engine, fence them on the topic, publish what they left.

    * `now`: The ids of the job's topics.
    * `takes_topic`: See `Publisher.take_over`. Also whether a throttle or marker topic may be another one than before.
        On another throttle topic, the running throttles are published again.

    Raises:
        Conflict: Another driver has taken over, or the topic has records of other tables.
        Refused: The throttle or marker topic was deleted and made anew. Nothing was published.
    """
    epoch.raise_in(tables.writers, tables.job)
    failpoint("start.epochs_raised")
    recovered = rebuild(tables, quotas, enforcement.decider, clock, settings)
    if not takes_topic:
        refuse_other_throttle_topics(settings, recovered.topic_ids, now)
    enforcement.decider.adopt(quotas.pin())
    failpoint("start.rebuilt")
    is_new = is_other(recovered.topic_ids, now, settings.kafka.throttle_topic)
    enforcement.purgatory.take_over(takes_topic, publishes_running=is_new)
    return recovered


def refuse_other_messages(
    settings: Settings, checkpoint: Checkpoint, spans: Mapping[str, Span], before: Ids, now: Ids
) -> None:
    """Refuse a checkpoint if the messages that follow it are gone, or the usage topic is another one.

    * `before`, `now`: The ids of the topics, as the tables have them and as they are.
    """
    topic = settings.kafka.usage_topic
    if not checkpoint.begins_at_first(topic, spans):
        refuse_other_usage_topic(settings, before, now)
    refuse_gaps(topic, settings.stream.checkpoint, checkpoint.next_offsets().get(topic, {}), spans)


def refuse_state_on_one_node(settings: Settings) -> None:
    """Refuse tables or a checkpoint on one node's disk in deploy mode cluster: the next driver would not find it.

    The lock of `run_dir` may stay on the node: it only keeps a second driver of the same node away; one elsewhere is
    fenced by the tables and by Kafka.
    """
    for setting, place in places_on_one_node(settings):
        message = f"'{setting}' {place} is on one node's disk, and the cluster chooses the driver's node"
        fix = (
            "name a store (s3://…, abfss://…), list the folder in 'spark.shared_folders' if every node mounts it, or "
            "submit with --deploy-mode client"
        )
        raise UsageError(message, fix)


def places_on_one_node(settings: Settings) -> Iterator[tuple[str, str]]:
    """Which of the settings name a place on one node's disk, each with that place.

    A place is shared if it is an absolute path, or such a path with the scheme `file`, in one of
    `spark.shared_folders`; or a URI of another scheme.
    """
    for setting, place in (("tables.root", settings.tables.root), ("stream.checkpoint", settings.stream.checkpoint)):
        parts = urlsplit(place) if has_scheme(place) else None
        path = PurePosixPath(place if parts is None else unquote(parts.path))
        is_in_a_store = parts is not None and parts.scheme != "file"
        if not (is_in_a_store or any(path.is_relative_to(folder) for folder in settings.spark.shared_folders)):
            yield setting, place
