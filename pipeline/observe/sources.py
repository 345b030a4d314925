"""Where an observation gets usage from: metrics pages or the usage topic; and quotas, where a job of kquota runs.

It only reads. Both sources of usage give what the job would read: scrapes go through the meter of `kquota meter
prometheus`, whose topic is memory here, and messages through the job's reader.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from pipeline.clock import Clock
from pipeline.cluster.acls import Acl
from pipeline.cluster.connecting import ClusterAccess, as_cluster_error, topic_missing
from pipeline.cluster.transactions import Mark
from pipeline.errors import Refused, TableMissing
from pipeline.meter.scrape_meter import LONGEST_INTERVAL_MS, ExporterSource, ScrapeMeter
from pipeline.meter.usage_topic import Message, UsagePublisher
from pipeline.observe.observation import SECOND_MS, Line, Sensor
from pipeline.stream.usage_columns import USAGE_SCHEMA, ReadingRules
from pipeline.stream.usage_reader import MESSAGE_SCHEMA, read_usage
from pipeline.tables.broker_quotas import NAME, state_of
from pipeline.tables.port import table_uri
from pipeline.tables.queries import Row, StoredTable, newest_batch_under
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.rates import read_rates
from quota.broker_levels.entries import EntryKey, is_metering
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


# What the tables say, of a cluster that a job of kquota manages.


class Managed(NamedTuple):
    """What the tables of the job that manages a cluster say.

    Attributes:
        quotas: Those in force, with the tenants.
        foreign: The values on the brokers that are neither in the quota table nor written by kquota.
    """

    root: str
    quotas: QuotaSnapshot
    foreign: Sequence[EntryKey]


def managed_by(table: QuotaTable, cluster: str, held: Mapping[EntryKey, float]) -> Managed:
    """What a quota table and those next to it say.

    Args:
        cluster: Its name in the tables.
        held: What its brokers hold.

    Raises:
        Refused: The job that writes these tables is another cluster's.
    """
    quotas, root = QuotaSource(table).pin(), table.root
    with suppress(TableMissing):
        batch = newest_batch_under(root)
        if batch is not None and batch["cluster"] != cluster:
            message = f"the tables under {root} are of the cluster {batch['cluster']}, and this one is {cluster}"
            raise Refused(message, "give --tables the root of this cluster's tables")
    ours = {
        EntryKey(quota.user, quota.client_id, name)
        for quota in quotas.quotas
        for name, bound in zip(QUOTA_TYPES, quota.bounds, strict=True)
        if bound is not None
    }
    with suppress(TableMissing):
        owned, undecided = state_of(StoredTable(table_uri(root, NAME)), cluster)
        ours |= {*owned, *(change.key for change in undecided)}
    return Managed(root, quotas, [key for key in held if key not in ours and not is_metering(key, held[key])])


_FRESH_MS: Final = 30_000
"""A job replaces its rates each second or two, in a store each ten."""
_LINES: Final = (
    'SELECT broker_id, "user", client_id, quota_type, observed, bound, level, sensor_user, sensor_client_id, mode, '
    "held_until_ms, broker_held_share FROM source WHERE clients IS NOT NULL OR level IS NULL"
)


def lines_of_job(root: str, now_ms: int) -> list[Line] | None:
    """How near every sensor is to its bound, and who is held, as the job sees it: what page and metrics have, too.

    In the order of `Line.place`. None if the job has stored no rates in the last 30 s.
    """
    with suppress(TableMissing):
        as_of_ms, rows = read_rates(root, lambda rates: (rates.as_of_ms, rates.rows(_LINES)))
        if as_of_ms > now_ms - _FRESH_MS:
            return sorted(map(_line_of, rows), key=lambda line: line.place)
    return None


def _line_of(row: Row) -> Line:
    of_whom = "" if row["level"] is None else "sensor_"
    user, client_id, of_type = row[f"{of_whom}user"], row[f"{of_whom}client_id"], QUOTA_TYPES.index(row["quota_type"])
    sensor = Sensor(of_type, user, client_id, row["level"] or 0, row["bound"], row["mode"])
    return Line(sensor, {row["broker_id"]: row["observed"]}, row["held_until_ms"], row["broker_held_share"])
