"""Reads the results of a peer from where it puts them, and since when each of them could be read."""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
from kafka import KafkaConsumer

from bench.load import partitions_of
from bench.peers.messages import MEASURES, Key, Sums

_LOOK_SECONDS: Final = 0.02
_READ_MS: Final = 500
_EMPTY_POLLS: Final = 6

Result = tuple[float, Key, Sums]
"""When it could be read at the latest (wall clock, ms), second and client, and the sums of the measures."""


class Results:
    """Where a peer puts its results. It is there before the peer, and is closed after it.

    Attributes:
        sums: All so far, by second and client.
        first_ms, last_ms: When the first and the last result of a key could be read.
    """

    adds = True
    """Whether results of one key are parts of a sum; otherwise the last one holds."""

    def __init__(self) -> None:
        self.sums: dict[Key, Sums] = {}
        self.first_ms: dict[Key, float] = {}
        self.last_ms: dict[Key, float] = {}

    def read(self) -> None:
        for at_ms, key, sums in self.new():
            before = self.sums.get(key)
            is_part = self.adds and before is not None
            self.sums[key] = tuple(a + b for a, b in zip(before or (), sums, strict=True)) if is_part else sums
            self.first_ms.setdefault(key, at_ms)
            self.last_ms[key] = at_ms

    def close(self) -> None:
        pass

    def progress(self) -> object:
        """Differs from what it was when there is something new."""
        raise NotImplementedError

    def new(self) -> Iterator[Result]:
        raise NotImplementedError


class TopicResults(Results):
    """Results in a topic, read committed.

    While the peer runs nothing is read. A thread only asks for the last stable offsets, and remembers when they were
    first seen. A result can be read as soon as the last stable offset is beyond it.
    """

    adds = False

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        super().__init__()
        self._servers = bootstrap_servers
        self._stop = Event()
        self._thread = Thread(target=self._look, daemon=True)
        self._seen: list[tuple[float, tuple[int, ...]]] = []
        self._consumer: Any = self._new_consumer()
        self._partitions = partitions_of(self._consumer, topic)
        self._consumer.assign(self._partitions)
        self._consumer.seek_to_beginning()
        self._thread.start()

    def _new_consumer(self) -> Any:
        return KafkaConsumer(
            bootstrap_servers=self._servers,
            isolation_level="read_committed",
            check_crcs=False,
            max_poll_records=20_000,
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=8 << 20,
        )

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def progress(self) -> object:
        return self._seen[-1][1] if self._seen else None

    def new(self) -> Iterator[Result]:
        seen = list(self._seen)
        if not seen:
            return
        times_ms = np.array([at_ms for at_ms, _ in seen])
        stable = np.array([offsets for _, offsets in seen])
        empty_polls = 0
        # Behind the last result there may be ends of transactions, and what was aborted: they give no record to poll.
        while empty_polls < _EMPTY_POLLS and any(
            self._consumer.position(one) < stable[-1, one.partition] for one in self._partitions
        ):
            polled = self._consumer.poll(timeout_ms=_READ_MS)
            empty_polls = 0 if polled else empty_polls + 1
            for partition, records in polled.items():
                offsets = np.array([record.offset for record in records])
                first_seen = np.searchsorted(stable[:, partition.partition], offsets, side="right")
                # What came after the last look can be read now. The look before may have been before a kill.
                at_ms = np.append(times_ms, time.time() * 1000)[first_seen]
                for record, readable_ms in zip(records, at_ms.tolist(), strict=True):
                    told = json.loads(record.value)
                    user, _, client_id = told["key"].partition("/")
                    sums = tuple(int(told[name]) for name in MEASURES)
                    yield readable_ms, (told["second_ms"], user, client_id), sums

    def _look(self) -> None:
        consumer = self._new_consumer()
        while not self._stop.is_set():
            ends = consumer.end_offsets(self._partitions)
            offsets = tuple(ends[partition] for partition in self._partitions)
            if not self._seen or offsets != self._seen[-1][1]:
                self._seen.append((time.time() * 1000, offsets))
            self._stop.wait(_LOOK_SECONDS)
        consumer.close()


class FileResults(Results):
    """Results in files of a folder, each with the sums of new messages; here Parquet files of bare Spark."""

    _pattern, _second = "*.parquet", "second_ms"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._seen: set[Path] = set()

    def progress(self) -> object:
        return self._files()[-1:]

    def new(self) -> Iterator[Result]:
        names = [self._second, "user", "client_id", *MEASURES]
        for file in self._files():
            if file not in self._seen:
                self._seen.add(file)
                at_ms = file.stat().st_mtime_ns / 1e6
                for data in self._data(file):
                    columns = pq.ParquetFile(data).read(columns=names).to_pydict()
                    for second_ms, user, client_id, *sums in zip(*(columns[name] for name in names), strict=True):
                        yield at_ms, (second_ms, user, client_id), tuple(int(value or 0) for value in sums)

    def _files(self) -> list[Path]:
        found = dict[Path, tuple[int, str]]()
        for file in self._folder.glob(self._pattern):
            with suppress(FileNotFoundError):  # upkeep removes old files of a table's log
                found[file] = file.stat().st_mtime_ns, file.name
        return sorted(found, key=found.__getitem__)

    def _data(self, file: Path) -> Iterable[Path]:
        return [file]


class UsageTableResults(FileResults):
    """Results in our Delta table `usage`, commit by commit: a row for each micro-batch, second, broker and client."""

    _pattern, _second = "_delta_log/*.json", "sample_start_ms"

    def _data(self, file: Path) -> Iterable[Path]:
        actions = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        return [self._folder / one["add"]["path"] for one in actions if "add" in one and one["add"]["dataChange"]]
