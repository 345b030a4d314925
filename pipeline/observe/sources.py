"""Where an observation gets usage from: metrics pages or the usage topic; and quotas, where a job of kquota runs.

It only reads. Both sources of usage give what the job would read: scrapes go through the meter of `kquota meter
prometheus`, whose topic is memory here, and messages through the job's reader.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from pipeline.brokers.native import NativeQuota, held_in, imported
from pipeline.brokers.running import cluster_name
from pipeline.clock import Clock
from pipeline.cluster.acls import Acl
from pipeline.cluster.connecting import ClusterAccess, as_cluster_error, topic_missing
from pipeline.cluster.transactions import Mark
from pipeline.errors import Refused, TableMissing
from pipeline.meter.scrape_meter import LONGEST_INTERVAL_MS, ExporterSource, ScrapeMeter
from pipeline.meter.usage_topic import Message, UsagePublisher
from pipeline.observe.observation import SECOND_MS, Client, Line, Sensor
from pipeline.settings.model import Settings
from pipeline.stream.usage_columns import USAGE_SCHEMA, ReadingRules
from pipeline.stream.usage_reader import MESSAGE_SCHEMA, read_usage
from pipeline.tables.broker_quotas import NAME, state_of
from pipeline.tables.port import TableUnreadable, table_uri
from pipeline.tables.queries import Row, StoredTable, newest_batch_under
from pipeline.tables.quotas.source import QuotaSource, Scope
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.rates import are_fresh, read_rates
from pipeline.tables.throttles import running_throttles
from quota.broker_levels.entries import EntryKey, is_metering
from quota.effective import resolved
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot

_POLL_MS: Final = 50
_QUIET_MS: Final = 15_000
_BEGIN_BEFORE_MS: Final = 12_000
_MOST_AGE_MS: Final = 3_600_000
_RULES: Final = ReadingRules(sample_window_ms=SECOND_MS, max_event_age_ms=_MOST_AGE_MS)


class SourceState(NamedTuple):
    """A broker as a source of usage.

    Attributes:
        trouble: Why nothing is known of it now; "" = it answers.
        unread: Why some of its quota lines could not be read; "" = all were.
    """

    name: str
    trouble: str
    unread: str = ""

    @property
    def notice(self) -> str:
        """What is wrong with it; "" = nothing."""
        unread = "" if self.unread in self.trouble else f"some of its quota lines cannot be read: {self.unread}"
        return "; ".join(part for part in (self.trouble, unread) if part)


def _read(messages: Sequence[tuple[bytes | None, int]]) -> pa.Table:
    """The usage of messages, given with their append times."""
    if not messages:
        return USAGE_SCHEMA.empty_table()
    values, appended_at_ms = zip(*messages, strict=True)
    count = len(values)
    columns = [values, [0] * count, range(count), appended_at_ms]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, MESSAGE_SCHEMA, strict=True)]
    return read_usage(pa.Table.from_arrays(arrays, schema=MESSAGE_SCHEMA), _RULES).usage


class _Memory:
    """`pipeline.meter.usage_topic.UsageWriter` that keeps the messages until they are taken."""

    partition_count = 1

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._mark: Mark | None = None

    def open(self) -> Mark | None:
        """There is no other writer."""
        return self._mark

    def committed(self) -> Mark | None:
        """The last mark."""
        return self._mark

    def store(self, messages: Sequence[Message], mark: Mark) -> None:
        """Keep the messages."""
        self.messages += messages
        self._mark = mark

    def close(self) -> None:
        """Nothing to close."""


class ScrapedSource:
    """Usage from the quota sensors that exporters show.

    Args:
        asked: As of `ScrapeMeter`.
    """

    lag_ms = LONGEST_INTERVAL_MS + SECOND_MS
    is_exact = False

    def __init__(self, asked: Iterable[ExporterSource], clock: Clock) -> None:
        self._clock, self._memory = clock, _Memory()
        publisher = UsagePublisher(self._memory, "memory")
        publisher.take_over()
        self._meter = ScrapeMeter(asked, publisher, clock, lambda _seconds: False)

    def take(self) -> pa.Table:
        """The usage since the last call, `USAGE_SCHEMA` in windows of one second. Waits some milliseconds at most."""
        self._meter.step()
        messages, self._memory.messages = self._memory.messages, []
        now_ms = self._clock.now().wall_ms
        return _read([(message.value, now_ms) for message in messages])

    def states(self) -> Sequence[SourceState]:
        """Every broker, and whether it answers."""
        return [
            SourceState(
                target.name,
                target.trouble or ("" if target.counts.scrapes else "no answer yet"),
                target.unread,
            )
            for target in self._meter.targets
        ]

    @property
    def has_no_sensors(self) -> bool:
        """Whether brokers answer, and none shows a quota sensor, nor a line that may be of one."""
        answered = [one for one in self._meter.targets if one.counts.scrapes > one.counts.failed]
        return bool(answered) and not any(one.counts.sensors or one.unread for one in answered)

    def close(self) -> None:
        """Stop reading."""
        self._meter.close()


class TopicSource:
    """Usage from the usage topic, from some seconds before now on. It joins no group and commits nothing.

    Args:
        broker_ids: All brokers of the cluster.

    Raises:
        PipelineError: The topic does not exist.
        PermissionMissing: It may not be read.
        ClusterUnreachable, Unreachable: There is no connection.
    """

    lag_ms = 2 * SECOND_MS
    is_exact = True
    has_no_sensors = False

    def __init__(self, access: ClusterAccess, topic: str, broker_ids: Iterable[int], clock: Clock) -> None:
        self._topic, self._clock = topic, clock
        self._seen_ms: dict[str, int | None] = dict.fromkeys(map(str, broker_ids))
        self._consumer: Any = access.open(
            KafkaConsumer,
            isolation_level="read_committed",
            enable_auto_commit=False,
            group_id=None,
            auto_offset_reset="latest",
            allow_auto_create_topics=False,
        )
        try:
            self._begin(access, clock.now().wall_ms - _BEGIN_BEFORE_MS)
        except BaseException:
            self._consumer.close()
            raise

    def take(self) -> pa.Table:
        """The usage since the last call. See `ScrapedSource.take`."""
        found = self._consumer.poll(_POLL_MS).values()
        usage = _read([(record.value, record.timestamp) for records in found for record in records])
        now_ms = self._clock.now().steady_ms
        self._seen_ms |= dict.fromkeys(usage["broker_id"].unique().to_pylist(), now_ms)
        return usage

    def states(self) -> Sequence[SourceState]:
        """Every broker, and whether it has usage."""
        now_ms = self._clock.now().steady_ms
        return [
            SourceState(f"broker {broker_id or 'without an id'}", self._trouble(seen_ms, now_ms))
            for broker_id, seen_ms in self._seen_ms.items()
        ]

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _trouble(self, seen_ms: int | None, now_ms: int) -> str:
        if seen_ms is None:
            return f"no usage on {self._topic} yet"
        quiet_ms = now_ms - seen_ms
        return f"no usage on {self._topic} for {quiet_ms // SECOND_MS} s" if quiet_ms > _QUIET_MS else ""

    def _begin(self, access: ClusterAccess, since_ms: int) -> None:
        with as_cluster_error(access.bootstrap_servers):
            try:
                numbers = self._consumer.partitions_for_topic(self._topic)
                if not numbers:
                    raise topic_missing(self._topic, access.bootstrap_servers, "usage")
                partitions = [TopicPartition(self._topic, number) for number in sorted(numbers)]
                self._consumer.assign(partitions)
                found = self._consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
                for partition in partitions:
                    place = found.get(partition)
                    if place is None:
                        self._consumer.seek_to_end(partition)
                    else:
                        self._consumer.seek(partition, place.offset)
            except KafkaError as exc:
                raise access.refusal(exc, [Acl("topic", self._topic, "Read")]) or exc from exc


Source = ScrapedSource | TopicSource
"""Gives usage. One caller at a time."""


# The quotas in force, and what the tables say where a job of kquota manages the cluster.


class InForce(NamedTuple):
    """The quotas in force at a cluster.

    Attributes:
        quotas: With the tenants, if they are of tables.
        note: Where they are from, in words.
        root: Of the tables of the job that manages the cluster; None = the quotas are those of the brokers.
        scope: Whether a bound holds for the cluster or for each broker.
        foreign: Values on the brokers that are neither in the quota table nor written by kquota.
        min_hold_ms: As of the settings of the job.
    """

    quotas: QuotaSnapshot
    note: str = ""
    root: str | None = None
    scope: Scope = "cluster"
    foreign: Mapping[EntryKey, float] = MappingProxyType({})
    min_hold_ms: int = 0


def newest_batch_in(settings: Settings, *, is_given: bool) -> Row | None:
    """The newest batch of the job that writes the tables of the settings; None if no job ever ran on them.

    Raises:
        TableMissing: `is_given`: these tables were asked for, and are not there.
    """
    try:
        QuotaTable(settings.tables.root)
        return newest_batch_under(settings.tables.root)
    except TableMissing:
        if is_given:
            raise
    return None


def quotas_in_force(
    settings: Settings, access: ClusterAccess, native: Sequence[NativeQuota], batch: Row | None, *, is_given: bool
) -> InForce:
    """Read the quotas of the table if its job has decided for this cluster, else the quotas of the brokers.

    Args:
        native: All that the brokers have.
        batch: As of `newest_batch_in`.
        is_given: These tables were asked for: tables of another cluster are refused, and else left out.

    Raises:
        Refused: The job that writes these tables is another cluster's.
        ClusterUnreachable: No answer.
    """
    root, note = settings.tables.root, ""
    if batch is not None:
        cluster = cluster_name(settings, access)
        if batch["cluster"] == cluster:
            return _in_table(settings, cluster, held_in(native))
        note = f"the tables under {root} are of the cluster {batch['cluster']}, and this one is {cluster}"
        if is_given:
            raise Refused(note, "give --tables the root of this cluster's tables")
        note += "; they are left out"
    elif is_given:
        note = f"no job has run on the tables under {root}: these are the quotas of the brokers"
    else:
        with access.admin() as admin, as_cluster_error(access.bootstrap_servers):
            topics = admin.list_topics()
        if settings.kafka.throttle_topic in topics:
            cause = f"the topic {settings.kafka.throttle_topic} exists: a job of kquota may manage this cluster"
            note = (
                f"{cause}. Then what its sync wrote is taken for quotas here. Fix: add --tables ROOT, with its tables"
            )
    rows, _ = imported(native, factor=1)
    return InForce(QuotaSnapshot.from_rows(rows, version=0), note)


def _in_table(settings: Settings, cluster: str, held: Mapping[EntryKey, float]) -> InForce:
    root = settings.tables.root
    source = QuotaSource(QuotaTable(root))
    quotas = source.pin()
    ours = {
        EntryKey(quota.user, quota.client_id, name)
        for quota in quotas.quotas
        for name, bound in zip(QUOTA_TYPES, quota.bounds, strict=True)
        if bound is not None
    }
    with suppress(TableMissing):
        owned, undecided = state_of(StoredTable(table_uri(root, NAME)), cluster)
        ours |= {*owned, *(change.key for change in undecided)}
    foreign = {key: value for key, value in held.items() if key not in ours and not is_metering(key, value)}
    note = f"quotas of the tables under {root}"
    return InForce(quotas, note, root, source.scope, foreign, settings.purgatory.min_hold_ms)


_OF_SENSOR: Final = ("broker_id", "quota_type", "sensor_user", "sensor_client_id")
_OF_CLIENT: Final = (*Client._fields, "quota_type")
_LINES: Final = (
    'SELECT broker_id, "user", client_id, quota_type, observed, bound, level, sensor_user, sensor_client_id, mode, '
    "broker_held_share FROM source WHERE clients IS NOT NULL OR level IS NULL"
)


def lines_of_job(in_force: InForce, now_ms: int) -> list[Line] | None:
    """How near every sensor is to its bound, as the job sees it, and who is held: what page and metrics have, too.

    In the order of `Line.place`. None without a job, if it has stored no fresh rates, or if they cannot be read now.
    """
    if in_force.root is None:
        return None
    with suppress(TableMissing, TableUnreadable):
        as_of_ms, rows = read_rates(in_force.root, lambda rates: (rates.as_of_ms, rates.rows(_LINES)))
        if are_fresh(in_force.root, as_of_ms, now_ms):
            running = running_throttles(in_force.root, now_ms, min_hold_ms=in_force.min_hold_ms)
            return sorted(_lines_of(rows, running, in_force.quotas), key=lambda line: line.place)
    return None


def _lines_of(rows: Sequence[Row], running: Iterable[Mapping[str, Any]], quotas: QuotaSnapshot) -> Iterator[Line]:
    until_ms: dict[tuple[Any, ...], int] = {}
    for row in running:  # the one that ends last comes first
        until_ms.setdefault(tuple(row[name] for name in _OF_SENSOR), row["throttled_until_ms"])
    # The job's rates do not tell who is exempt from who has no quota.
    names = {
        name: pa.array([row[name] for row in rows if row["level"] is None], pa.string()) for name in Client._fields
    }
    modes = {tuple(row[name] for name in _OF_CLIENT): row["mode"] for row in resolved(pa.table(names), quotas)}
    for row in rows:
        quota_type, held_ms = QUOTA_TYPES.index(row["quota_type"]), None
        if row["level"] is None:
            mode = modes[tuple(row[name] for name in _OF_CLIENT)]
            sensor = Sensor(quota_type, row["user"], row["client_id"], 0, None, mode)
        else:
            names_of = row["sensor_user"], row["sensor_client_id"]
            sensor = Sensor(quota_type, *names_of, row["level"], row["bound"], row["mode"])
            if row["mode"] == "enforce":
                held_ms = until_ms.get(tuple(row[name] for name in _OF_SENSOR))
        yield Line(sensor, {row["broker_id"]: row["observed"]}, held_ms, row["broker_held_share"])
