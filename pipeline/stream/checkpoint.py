"""Spark's checkpoint: its files, its offsets, and whether it belongs to the job's tables.

A checkpoint of another job, an old copy of a checkpoint, or tables restored to an earlier day: with any of these Spark
would skip usage or count it twice, without any message. The tables record which query wrote them and up to which
batch. So the two are compared before a query starts. Without a checkpoint there is nothing to compare: the job begins
where its tables end.

The files are on a local disk or in an object store, where Spark writes them. They are read without Spark.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from kafka import KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors

from pipeline.cluster.connecting import ClusterAccess
from pipeline.errors import ClusterUnreachable, Refused, Unreachable, UsageError
from pipeline.tables.object_store import STORE_SCHEMES, StoreObjects, scheme_of

log = logging.getLogger(__name__)

_REMEDY = "nothing needs to be done: the job tries again"


class CheckpointFiles:
    """The files of one checkpoint, in a folder of this machine or in an object store.

    Each call raises `Unreachable` if the store does not answer, or refuses.

    Args:
        checkpoint: Where it is, as in the settings: a path, a URI with the scheme `file`, or an address of a store;
            `UsageError` if its scheme is none of these.
    """

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        scheme = scheme_of(checkpoint)
        if scheme not in {"", "file", *STORE_SCHEMES}:
            known = ", ".join(f"{scheme}://" for scheme in STORE_SCHEMES)
            message = f"'stream.checkpoint' {checkpoint} has a scheme that is not known here"
            raise UsageError(message, f"name a folder, or a store: {known}")
        self._objects = StoreObjects(checkpoint) if scheme in STORE_SCHEMES else None
        self._folder = Path(unquote(urlsplit(checkpoint).path) if scheme == "file" else checkpoint)

    def text(self, name: str) -> str | None:
        """Read a file as text; returns None if it does not exist."""
        if self._objects is not None:
            with self._unreachable():
                content = self._objects.read(name)
            return None if content is None else content.decode()
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """List the files in a folder of the checkpoint, in no order; returns none if the folder does not exist."""
        if self._objects is not None:
            with self._unreachable():
                return self._objects.names(folder)
        place = self._folder / folder
        return [path.name for path in place.iterdir()] if place.is_dir() else []

    @contextmanager
    def _unreachable(self) -> Iterator[None]:
        try:
            yield
        except (Refused, Unreachable) as exc:
            message = f"checkpoint {self.checkpoint} cannot be read: {exc.message}"
            fix = "check the store's address and credentials in 'store', or name another one with --checkpoint"
            raise Unreachable(message, fix) from exc


class Span(NamedTuple):
    """The offsets that a partition has: from the first, inclusive, to the end, exclusive."""

    begin: int
    end: int


_SAMPLE_MS: Final = 1_500


def spans_and_newest(access: ClusterAccess, topic: str, most: int = 0) -> tuple[dict[str, Span], list[bytes]]:
    """The offsets that each partition of a topic has, by its number as text, and values of its newest messages.

    * `most`: So many values of each partition; fewer if they come late.
    """
    newest: list[bytes] = []
    consumer = access.open(KafkaConsumer, enable_auto_commit=False, group_id=None)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        filled = [partition for partition in partitions if ends[partition] > begins[partition]]
        if most and filled:
            consumer.assign(filled)
            for partition in filled:
                consumer.seek(partition, max(ends[partition] - most, begins[partition]))
            polled = consumer.poll(timeout_ms=_SAMPLE_MS, max_records=most * len(filled))
            newest = [record.value for records in polled.values() for record in records if record.value is not None]
    except kafka_errors.KafkaError as exc:
        raise ClusterUnreachable(access.bootstrap_servers, str(exc), _REMEDY) from exc
    finally:
        consumer.close()
    spans = {str(partition.partition): Span(begins[partition], ends[partition]) for partition in partitions}
    return spans, newest


def gaps(wanted: Mapping[str, int], spans: Mapping[str, Span]) -> list[str]:
    """Why reading cannot begin at the wanted offsets, one text per partition; empty if it can."""
    found = []
    for partition, offset in sorted(wanted.items()):
        span = spans.get(partition)
        if span is None:
            found.append(f"partition {partition} is gone")
        elif offset < span.begin:
            found.append(f"partition {partition}: offsets {offset} to {span.begin - 1} are deleted")
        elif offset > span.end:
            found.append(f"partition {partition} ends at {span.end}, before {offset}: it was deleted and created again")
    return found


def refuse_gaps(topic: str, checkpoint: str, wanted: Mapping[str, int], spans: Mapping[str, Span]) -> None:
    """Refuse to continue from a checkpoint if usage after it is gone."""
    if missing := gaps(wanted, spans):
        message = f"usage on topic '{topic}' was deleted before it was read: {'; '.join(missing)}"
        fix = f"delete the checkpoint {checkpoint}: the job then continues with what is left, without the missing usage"
        raise Refused(message, fix)


def starting_offsets(topic: str, end_offsets: str, spans: Mapping[str, Span]) -> str:
    """Where a new checkpoint begins: at the end of what is stored.

    A partition that was added since then begins at its first offset. So does a partition whose stored end no longer
    exists: whoever deletes a checkpoint gives up the usage in between, but the log names it as an error.

    * `end_offsets`: End offsets of the newest stored batch, as Spark prints them; the result is such JSON, too.
    """
    stored: dict[str, int] = json.loads(end_offsets).get(topic, {})
    for gap in gaps(stored, spans):
        log.error("usage is missing and will not be counted: topic '%s', %s", topic, gap)
    begin = {
        partition: offset if span.begin <= (offset := stored.get(partition, span.begin)) <= span.end else span.begin
        for partition, span in spans.items()
    }
    return json.dumps({topic: begin}, separators=(",", ":"))


_FIRST_SOURCE_LINE: Final = 2  # after a version line and a metadata line


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of a batch by topic and partition, as JSON. `start` is "" for the first batch of a checkpoint.

    `first` is where the query begins, for that batch; "" if it is not known.
    """

    start: str
    end: str
    first: str = ""

    @property
    def message_count(self) -> int | None:
        """The number of offsets of the batch; None if its start is not known."""
        start = self.start or self.first
        if not start:
            return None
        before, after = json.loads(start), json.loads(self.end or "{}")
        return sum(
            int(end) - int(before.get(topic, {}).get(partition, 0))
            for topic, partitions in after.items()
            for partition, end in partitions.items()
        )


def source_line(text: str) -> str:
    """The offsets in an entry of the log, as JSON; "" if the entry has none."""
    return next((line for line in text.splitlines()[_FIRST_SOURCE_LINE:] if "{" in line), "")


_BEGINS: Final = ("sources/usage/0", "sources/0/0")
"""Where Spark writes at which offsets a query begins; before Spark 4.2 sources have no names."""


def begin_of(files: CheckpointFiles) -> str:
    """Where the query of a checkpoint begins, as JSON; "" if it has not begun."""
    return next(filter(None, map(files.text, _BEGINS)), "").partition("\n")[2]


class OffsetLog:
    """Which offsets a micro-batch covers, by the query's offset log in the checkpoint.

    Spark writes `offsets/<batch id>` before it calls `foreachBatch`. So the entry exists, and is the same each time the
    batch is run.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def range_of(self, batch_id: int) -> OffsetRange:
        """Offsets of a batch that has begun."""
        if not batch_id:
            return OffsetRange("", self._source_line(0), begin_of(self._files))
        return OffsetRange(self._source_line(batch_id - 1), self._source_line(batch_id))

    def _source_line(self, batch_id: int) -> str:
        return source_line(self._files.text(f"offsets/{batch_id}") or "")


RecordedBatch = Callable[[str], int | None]
"""The newest batch in the tables of the query with this id; None if they have none of it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of a checkpoint.

    Attributes:
        planned: Newest batch in the offset log; -1 for none.
        committed: Newest batch in the commit log; -1 for none.
    """

    files: CheckpointFiles
    query_id: str
    planned: int
    committed: int

    @classmethod
    def read(cls, files: CheckpointFiles) -> Self | None:
        """Read a checkpoint; None if there is none. `Refused` if a power loss has cut what a start reads of it."""
        metadata = files.text("metadata")
        if metadata is None:
            return None
        planned, committed = _newest(files.names("offsets")), _newest(files.names("commits"))
        needed = ("metadata", f"offsets/{planned}", f"offsets/{planned - 1}", f"commits/{committed}", *_BEGINS)
        for name in needed:
            if _is_cut(name, files.text(name)):
                raise _damaged(files.checkpoint, name)
        return cls(files, json.loads(metadata)["id"], planned, committed)

    def next_offsets(self) -> dict[str, dict[str, int]]:
        """Where the next batch begins, or the batch to be repeated; empty if the query has not completed a batch."""
        last = min(self.planned, self.committed)
        line = source_line(self.files.text(f"offsets/{last}") or "")
        offsets: dict[str, dict[str, int]] = json.loads(line) if line else {}
        return offsets

    def begins_at_first(self, topic: str, spans: Mapping[str, Span]) -> bool:
        """Whether a query that has not completed a batch begins at the first message of each partition, or before."""
        if self.committed >= 0:
            return False
        begin: dict[str, int] = json.loads(begin_of(self.files) or "{}").get(topic, {})
        return all(begin.get(partition, 0) <= span.begin for partition, span in spans.items())

    def check(self, recorded: RecordedBatch, newest_query_id: str | None) -> None:
        """Refuse a checkpoint that belongs to another job, or is older or newer than the tables.

        * `newest_query_id`: The query that wrote the newest batch; None for tables without batches.
        """
        if self.planned < 0:
            return
        batch_id = recorded(self.query_id)
        mismatch = None
        if batch_id is None:
            if self.committed >= 0:
                mismatch = "it belongs to a query that has not written them"
        elif self.query_id != newest_query_id:
            mismatch = "it belongs to an earlier query"
        elif batch_id > self.planned:
            mismatch = f"it ends at batch {self.planned}, the tables at {batch_id}"
        elif batch_id < self.committed:
            mismatch = f"it has committed batch {self.committed}, the tables end at {batch_id}"
        if mismatch is not None:
            message = f"checkpoint {self.files.checkpoint} does not fit the tables: {mismatch}"
            fix = (
                "give the job's own one with --checkpoint, or delete this one: the job then begins where its tables end"
            )
            raise Refused(message, fix)


_LEAST_LINES: Final = {"offsets": 3, "commits": 2, "sources": 2}


def _is_cut(name: str, text: str | None) -> bool:
    """Whether a file has lost lines; None = there is none. All but `metadata` begin with a line for the version."""
    if text is None:
        return False
    lines = text.splitlines()
    try:
        for line in lines[min(len(lines), name != "metadata") :]:
            json.loads(line)
    except ValueError:
        return True
    return len(lines) < _LEAST_LINES.get(name.partition("/")[0], 1)


def _damaged(checkpoint: str, name: str) -> Refused:
    place = quote(checkpoint)
    away = f"move {checkpoint} away" if scheme_of(checkpoint) else f"mv {place} {place}.damaged"
    message = f"checkpoint {checkpoint} is damaged: {name} is empty or cut, as after a power loss"
    return Refused(message, f"stop the job and start it without this one, it begins where its tables end: {away}")


def _newest(names: Iterable[str]) -> int:
    return max((int(name) for name in names if name.isdecimal()), default=-1)
