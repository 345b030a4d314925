"""Replays of a range of stored usage."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from operator import is_

import numpy as np

from pipeline.replay.request import Plan, ReplayRequest, Start, Timeline, usage_not_kept
from pipeline.replay.usage_batches import BINS, Outcome, ReplayResult, UsageBatch, UsageReader
from pipeline.throttle.assembly import engine_of
from pipeline.throttle.shapes import bounds_of, entities_of, int64s, types_of
from quota.holds import Holds
from quota.replay import ReplayEngine
from quota.resolution import recorded_keys
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey

Progress = Callable[[int, int], None]
"""Called with how many slices are done and how many there are, over all replays."""


def run(plan: Plan, progress: Progress) -> list[ReplayResult]:
    """All replays of a range: rates, buckets, and every throttle with its looks and renewals.

    A throttle depends on all usage before it, so the whole range is replayed in order. The usage is read slice by
    slice, so that memory does not grow with the range. Each batch is read and decided once for all replays that bound
    the same types.

    Raises:
        NotFound: The range has no usage.
    """
    quotas = plan.request.quotas
    groups = [quotas] if are_alike(quotas) else [(one,) for one in quotas]
    done, whole = count(1), len(groups) * len(plan.slices)
    found = [result for group in groups for result in _replayed(plan, group, lambda: progress(next(done), whole))]
    if not found[0].evaluations:
        raise usage_not_kept(plan.uri)
    return found


def _replayed(plan: Plan, quotas: Sequence[Timeline], slice_done: Callable[[], None]) -> list[ReplayResult]:
    """The results of replays that `are_alike`: each batch is read and decided once for all of them."""
    reader = UsageReader(plan.request, len(quotas))
    replays = _Replays(plan.request, quotas, reader)
    for batches in reader.read(plan.slices):
        for batch in batches:
            replays.decide(batch)
        slice_done()
    return replays.results()


def are_alike(quotas: Sequence[Timeline]) -> bool:
    """Whether one engine can decide for all replays: their quotas always bound the same types."""
    return len({recorded_keys(snapshot) for timeline in quotas for snapshot in timeline.snapshots}) == 1


class _Replays:
    """Replays of the same batches, each with its own quotas. Client c in replay r has the number c · replays + r."""

    def __init__(self, request: ReplayRequest, quotas: Sequence[Timeline], reader: UsageReader) -> None:
        self.reader = reader
        self._start = request.start
        self._since_ms, self._until_ms = request.since_ms, request.until_ms
        self._quotas = quotas
        self._engine = engine_of(partial(ReplayEngine, replays=len(quotas)), request.settings, request.scope)
        span = request.since_ms, request.until_ms
        self._holds = Holds(request.slicing, self._engine.owed_at, *span, BINS, len(quotas))
        self._in_force: list[QuotaSnapshot] = []
        self._epoch: int | None = None
        self._at_ms = 0
        self._result = ReplayResult()

    def decide(self, batch: UsageBatch) -> None:
        """Take the looks before a batch, then decide the batch. Those up to the start only fill the sample windows."""
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
        self._result.rows += len(usage.clients) // len(self._quotas)
        if self._since_ms <= batch.at_ms < self._until_ms:
            self._result.evaluations += 1
            place = (batch.at_ms - self._since_ms) * BINS // max(self._until_ms - self._since_ms, 1)
            self._result.has_batch[place] = True

    def _take_up(self, start: Start, first: UsageBatch) -> None:
        """Go on from a start, after the batches up to it and before the first one after it."""
        if not self._in_force:
            self._put_in_force(first)
        self._engine.restore_each(start.buckets)
        throttles = start.throttles
        clients = [ClientKey(**row) for row in throttles.select(ClientKey._fields).to_pylist()]
        replays = np.arange(len(self._quotas))
        numbers = np.array([self.reader.number_of(one) for one in clients], np.int64)
        each = (numbers[:, None] * len(replays) + replays).ravel()
        self._engine.resolve_again(each, entities_of(clients), start.at_ms)
        from_ms, spans_ms = int64s(throttles, "evaluated_at_ms"), int64s(throttles, "throttle_time_ms")
        running = types_of(throttles), bounds_of(throttles), from_ms, from_ms + spans_ms
        types, bounds, begins_ms, ends_ms = (np.repeat(column, len(replays)) for column in running)
        self._holds.take_up(each, types, bounds, begins_ms, ends_ms, start.at_ms)

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

    def results(self) -> list[ReplayResult]:
        """What each replay found; no batch may follow."""
        self._come_to_epoch(self.reader.epochs[-1].time_epoch if self.reader.epochs else 0)
        totals, replays = self._holds.finish(), len(self._quotas)
        columns = (column.tolist() for column in (totals.windows, totals.throttle_ms, totals.deferred_bytes))
        figures = [Outcome(*of_client) for of_client in zip(*columns, strict=True)]
        return [
            replace(
                self._result,
                outcomes=dict(zip(self.reader.numbers, figures[replay::replays], strict=False)),
                throttle_ms_by_bin=self._holds.throttle_ms_by_bin[replay],
            )
            for replay in range(replays)
        ]

    def _put_in_force(self, batch: UsageBatch) -> None:
        """Load the quotas of the batch. If they differ from those before, look at the throttles that they change."""
        version = batch.quota_version
        snapshots = [one.at(batch.at_ms) if version is None else one.version(version) for one in self._quotas]
        if len(self._in_force) and all(map(is_, snapshots, self._in_force)):
            return
        self._engine.load_each(snapshots)
        self._in_force = snapshots
        held = self._holds.held.tolist()
        if held:
            clients = list(self.reader.numbers)
            names = entities_of([clients[number // len(snapshots)] for number in held])
            self._engine.resolve_again(np.array(held), names, batch.at_ms)
            self._holds.look_after_edit(batch.at_ms)
