"""Replays of a range of stored usage, each by the job's own decider and purgatory, with quotas of its own."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pyarrow as pa

from pipeline.replay.request import Plan, ReplayRequest, Start, Timeline, usage_not_kept
from pipeline.replay.usage_batches import Outcome, ReplayResult, UsageBatch, UsageReader
from pipeline.throttle.assembly import Rehearsal
from pipeline.throttle.shapes import Publications, int64s
from quota.arrays import Ids, Ints
from quota.snapshot import QuotaSnapshot
from quota.usage import KeyIndex, Pair
from schemas.names import ClientKey

Progress = Callable[[int, int], None]
"""Called with how many slices are done and how many there are."""


def run(plan: Plan, progress: Progress) -> list[ReplayResult]:
    """All replays of a range: rates, buckets, and every throttle with its checks and renewals.

    A throttle depends on all usage before it, so the whole range is replayed in order. The usage is read once for all
    replays, slice by slice, so that memory does not grow with the range.

    Raises:
        NotFound: The range has no usage.
    """
    reader = UsageReader(plan.request)
    replays = [_Replay(plan.request, quotas, reader) for quotas in plan.request.quotas]
    for done, wanted in enumerate(plan.slices, 1):
        for batch in reader.read(wanted):
            for replay in replays:
                replay.decide(batch)
        progress(done, len(plan.slices))
    found = [replay.result() for replay in replays]
    if not found[0].evaluations:
        raise usage_not_kept(plan.uri)
    return found


_NO_WINDOW = -1


class _Effects:
    """What the records of a replay do to its clients: how long each is held, and how much it uses while it is held.

    The usage does not react to the records: it is what was stored, even where a client would have waited. Usage at or
    after the beginning of a throttle and before its end counts as deferred.
    """

    def __init__(self, request: ReplayRequest, reader: UsageReader) -> None:
        self._reader = reader
        self._start_ms, self._end_ms = request.since_ms, request.until_ms
        self._window_ms = request.settings.engine.sample_window_ms
        self._counted_until_ms = 0
        self._index, self._client_of = KeyIndex(), np.zeros(0, np.int64)
        # By the number of a client: its running throttle, or the last one; and the sums.
        self._is_held = np.zeros(0, np.bool_)
        self._from_ms, self._until_ms = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._last_window = np.zeros(0, np.int64)
        self._windows, self._held_ms, self._deferred_bytes = (np.zeros(0, np.int64) for _ in range(3))

    def hear(self, publications: Publications, at_ms: Ints) -> None:
        """Take in records that are published at these instants, on the clock of the usage."""
        clients = self._clients_of(publications.keys, publications.clients)
        holds, until_ms = publications.holds, at_ms + publications.throttle_time_ms
        begin = holds & ~self._is_held[clients]
        self._from_ms[clients[begin]] = at_ms[begin]
        self._until_ms[clients], self._is_held[clients] = until_ms, holds
        self._count(clients[~holds], at_ms[~holds])

    def take_up(self, keys: Pair, clients: pa.Table, from_ms: Ints, until_ms: Ints) -> None:
        """Clients that are held before the first record."""
        held = self._clients_of(keys, clients)
        self._is_held[held], self._from_ms[held], self._until_ms[held] = True, from_ms, until_ms

    def use(self, batch: UsageBatch) -> None:
        """Take in usage, before the decisions that follow from it."""
        self._grow()
        clients, used_at_ms = batch.clients, batch.usage.last_ms
        waits = (used_at_ms < self._until_ms[clients]) & (used_at_ms >= self._from_ms[clients])
        rows = waits.nonzero()[0]
        rows = rows[(used_at_ms[rows] >= self._start_ms) & (used_at_ms[rows] < self._end_ms)]
        np.add.at(self._deferred_bytes, clients[rows], batch.used_bytes[rows])

    def violate(self, clients: Ids, at_ms: int) -> None:
        """Count the sample window of clients with an applied decision, each once."""
        window = at_ms // self._window_ms
        self._windows[clients] += self._last_window[clients] != window
        self._last_window[clients] = window

    def begin_epoch(self, last_ms: int, now_ms: int) -> None:
        """The clocks were set back: what is left of a throttle stays left, and what was held until then counts."""
        held, moved_ms = self._is_held.nonzero()[0], now_ms - last_ms
        self._count(held, np.full(len(held), last_ms))
        self._from_ms += moved_ms
        self._until_ms += moved_ms
        self._last_window[:] = _NO_WINDOW
        self._counted_until_ms = now_ms

    def outcomes(self) -> dict[ClientKey, Outcome]:
        """What every client met with; no record follows."""
        self._grow()
        held = self._is_held.nonzero()[0]
        self._count(held, self._until_ms[held])
        columns = (column.tolist() for column in (self._windows, self._held_ms, self._deferred_bytes))
        figures = (Outcome(*of_client) for of_client in zip(*columns, strict=True))
        return {client: next(figures) for client in self._reader.numbers}

    def _clients_of(self, keys: Pair, clients: pa.Table) -> Ids:
        """The numbers that the reader gave them."""
        places, new = self._index.add(keys)
        if len(new):
            found = clients.take(pa.array(new)).to_pylist()
            self._client_of = np.append(self._client_of, [self._reader.number_of(ClientKey(**one)) for one in found])
        self._grow()
        return self._client_of[places]

    def _count(self, clients: Ids, to_ms: Ints) -> None:
        from_ms = np.maximum(self._from_ms[clients], self._counted_until_ms)
        first_ms, last_ms = (np.clip(ms, self._start_ms, self._end_ms) for ms in (from_ms, np.maximum(from_ms, to_ms)))
        self._held_ms[clients] += last_ms - first_ms

    def _grow(self) -> None:
        size = len(self._is_held)
        if size >= len(self._reader.numbers):
            return
        room = 0, 2 * len(self._reader.numbers) - size
        self._is_held = np.pad(self._is_held, room)
        self._from_ms, self._until_ms = np.pad(self._from_ms, room), np.pad(self._until_ms, room)
        self._last_window = np.pad(self._last_window, room, constant_values=_NO_WINDOW)
        self._windows, self._held_ms = np.pad(self._windows, room), np.pad(self._held_ms, room)
        self._deferred_bytes = np.pad(self._deferred_bytes, room)


class _Replay:
    """One replay, with quotas of its own. Batches up to the start of the request only fill the sample windows."""

    def __init__(self, request: ReplayRequest, quotas: Timeline, reader: UsageReader) -> None:
        self._reader = reader
        self._start = request.start
        self._since_ms, self._until_ms = request.since_ms, request.until_ms
        self._quotas = quotas
        self._effects = _Effects(request, reader)
        self._job = Rehearsal(request.settings, request.scope, self._effects.hear)
        self._has_begun = False
        self._epoch: int | None = None
        self._at_ms = 0
        self._result = ReplayResult()

    def decide(self, batch: UsageBatch) -> None:
        """Take the checks before a batch, then decide the batch."""
        evaluation, job = batch.evaluation, self._job
        at_ms, start = evaluation.evaluated_at_ms, self._start
        self._come_to_epoch(evaluation.time_epoch)
        self._at_ms = max(self._at_ms, at_ms)
        snapshot = self._snapshot_of(batch)
        if start is not None and (at_ms, evaluation.batch_id) > (start.at_ms, start.batch_id):
            self._take_up(start, snapshot)
            self._start = start = None
        elif start is None and not self._has_begun:
            job.begin(at_ms)
            self._has_begun = True
        job.wait_until(at_ms)
        job.put_in_force(snapshot)
        self._effects.use(batch)
        asked = job.decide(batch.usage, evaluation, batch.is_old, holds=start is None).violations
        self._result.rows += len(batch.clients)
        if self._since_ms <= at_ms < self._until_ms:
            self._result.evaluations += 1
            if len(asked) and start is None:
                self._effects.violate(batch.clients[asked.rows], at_ms)

    def result(self) -> ReplayResult:
        """What it found; no batch may follow."""
        self._come_to_epoch(self._reader.epochs[-1].time_epoch if self._reader.epochs else 0)
        if self._has_begun:
            self._job.wait_until(self._until_ms - 1)
        self._result.outcomes = self._effects.outcomes()
        return self._result

    def _snapshot_of(self, batch: UsageBatch) -> QuotaSnapshot:
        version = batch.evaluation.quota_version
        return self._quotas.at(batch.evaluation.evaluated_at_ms) if version < 0 else self._quotas.version(version)

    def _take_up(self, start: Start, snapshot: QuotaSnapshot) -> None:
        """Go on from a start, after the batches up to it and before the first one after it."""
        if not self._result.rows:
            self._job.put_in_force(snapshot)
        rows = start.throttles
        from_ms = int64s(rows, "evaluated_at_ms")
        until_ms = from_ms + int64s(rows, "throttle_time_ms")
        # The clock that they were written on is not that of the usage.
        running = rows.set_column(
            rows.schema.get_field_index("throttled_until_ms"), "throttled_until_ms", pa.array(until_ms)
        )
        clients = rows.select(ClientKey._fields)
        self._effects.take_up(self._job.decider.keys_of(clients), clients, from_ms, until_ms)
        self._job.begin(start.at_ms, running, start.buckets)
        self._has_begun = True

    def _come_to_epoch(self, time_epoch: int) -> None:
        """Begin the time epochs after that of the last batch, up to this one, each where the one before ended."""
        if self._epoch is not None:
            for ended, begun in pairwise(self._reader.epochs):
                if self._epoch < begun.time_epoch <= time_epoch:
                    last_ms = max(self._at_ms, ended.last_ms)
                    self._job.begin_epoch(last_ms, begun.first_ms)
                    self._effects.begin_epoch(last_ms, begun.first_ms)
                    self._at_ms = begun.first_ms
        self._epoch = time_epoch
