"""Replays of a range of stored usage."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from pipeline.replay.request import Plan, ReplayRequest, Start, Timeline, usage_not_kept
from pipeline.replay.usage_batches import Outcome, ReplayResult, UsageBatch, UsageReader
from pipeline.throttle.assembly import engine_of
from pipeline.throttle.shapes import bounds_of, entities_of, int64s, types_of
from quota.holds import Holds
from quota.replay import ReplayEngine
from quota.snapshot import QuotaSnapshot
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


class _Replay:
    """One replay, with quotas of its own."""

    def __init__(self, request: ReplayRequest, quotas: Timeline, reader: UsageReader) -> None:
        self.reader = reader
        self._start = request.start
        self._since_ms, self._until_ms = request.since_ms, request.until_ms
        self._quotas = quotas
        self._engine = engine_of(ReplayEngine, request.settings, request.scope)
        self._holds = Holds(request.slicing, self._engine.owed_at, request.since_ms, request.until_ms)
        self._in_force: QuotaSnapshot | None = None
        self._epoch: int | None = None
        self._at_ms = 0
        self._result = ReplayResult()

    def decide(self, batch: UsageBatch) -> None:
        """Take the checks before a batch, then decide the batch. Those up to the start only fill the sample windows."""
        self._come_to_epoch(batch.time_epoch)
        self._at_ms = max(self._at_ms, batch.at_ms)
        start = self._start
        if start is not None and (batch.at_ms, batch.batch_id) > (start.at_ms, start.batch_id):
            self._take_up(start, batch)
            self._start = start = None
        self._holds.advance(batch.at_ms)
        self._put_in_force(batch)
        usage = batch.usage
        self._holds.use(usage.clients, usage.last_ms, batch.used_bytes)
        throttles = self._engine.throttles(usage, batch.at_ms, batch.is_old)
        if len(throttles.rows) and start is None:
            self._holds.decide(usage.clients[throttles.rows], throttles, batch.at_ms, batch.is_old)
        self._result.rows += len(usage.clients)
        if self._since_ms <= batch.at_ms < self._until_ms:
            self._result.evaluations += 1

    def _take_up(self, start: Start, first: UsageBatch) -> None:
        """Go on from a start, after the batches up to it and before the first one after it."""
        if self._in_force is None:
            self._put_in_force(first)
        self._engine.restore_buckets(start.buckets)
        throttles = start.throttles
        clients = [ClientKey(**row) for row in throttles.select(ClientKey._fields).to_pylist()]
        numbers = np.array([self.reader.number_of(one) for one in clients], np.int64)
        self._engine.resolve_again(numbers, entities_of(clients), start.at_ms)
        from_ms, spans_ms = int64s(throttles, "evaluated_at_ms"), int64s(throttles, "throttle_time_ms")
        running = types_of(throttles), bounds_of(throttles), from_ms, from_ms + spans_ms
        self._holds.take_up(numbers, *running, start.at_ms)

    def _come_to_epoch(self, time_epoch: int) -> None:
        """Begin the time epochs after that of the last batch, up to this one, each where the one before ended."""
        if self._epoch is not None:
            for ended, begun in pairwise(self.reader.epochs):
                if self._epoch < begun.time_epoch <= time_epoch:
                    last_ms = max(self._at_ms, ended.last_ms)
                    self._holds.advance(last_ms)
                    self._engine.begin_epoch(last_ms, begun.first_ms)
                    self._holds.begin_epoch(last_ms, begun.first_ms)
                    self._at_ms = begun.first_ms
        self._epoch = time_epoch

    def result(self) -> ReplayResult:
        """What it found; no batch may follow."""
        self._come_to_epoch(self.reader.epochs[-1].time_epoch if self.reader.epochs else 0)
        totals = self._holds.finish()
        columns = (column.tolist() for column in (totals.windows, totals.throttle_ms, totals.deferred_bytes))
        figures = (Outcome(*of_client) for of_client in zip(*columns, strict=True))
        self._result.outcomes = {client: next(figures, Outcome()) for client in self.reader.numbers}
        return self._result

    def _put_in_force(self, batch: UsageBatch) -> None:
        """Load the quotas of the batch. If they differ from those before, check the throttles that they change."""
        version = batch.quota_version
        snapshot = self._quotas.at(batch.at_ms) if version is None else self._quotas.version(version)
        if snapshot is self._in_force:
            return
        self._engine.load_quotas(snapshot)
        self._in_force = snapshot
        held = self._holds.held
        if len(held):
            clients = list(self.reader.numbers)
            self._engine.resolve_again(held, entities_of([clients[number] for number in held]), batch.at_ms)
            self._holds.check_after_edit(batch.at_ms)
