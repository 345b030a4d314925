"""Replays of a range of stored usage, each by the job's own decider and purgatory, with quotas of its own."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from pipeline.replay.request import ReplayRequest, Start, Timeline, slice_length_ms, usage_not_kept
from pipeline.replay.usage_batches import HeldSpans, HeldTimes, Outcome, ReplayResult, UsageBatch, UsageReader
from pipeline.tables.reading import split_range
from pipeline.throttle.assembly import Rehearsal
from pipeline.throttle.shapes import Publications, int64s
from quota.arrays import Ints
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey
from schemas.throttle_record import Target

Progress = Callable[[int, int], None]
"""Called with how many slices are done and how many there are."""


def run(request: ReplayRequest, progress: Progress, slice_ms: int | None = None) -> list[ReplayResult]:
    """All replays of a range: rates, buckets, and every throttle with its checks and renewals.

    A throttle depends on all usage before it, so the whole range is replayed in order. The usage is read once for all
    replays, in slices of about `slice_ms` (None = `slice_length_ms`), so that memory does not grow with the range.

    Raises:
        UsageError: The source has one row per second, and the sample windows are not whole seconds.
        TableMissing: The root has no such table.
        NotFound: The range has no usage.
    """
    request.refuse_divided_seconds()
    reader = UsageReader(request)
    if slice_ms is None:
        rows = reader.table.estimated_rows(request.begin_ms, request.until_ms)
        slice_ms = slice_length_ms(request.until_ms - request.begin_ms, rows)
    slices = [*split_range(request.begin_ms, request.until_ms, slice_ms)]
    replays = [_Replay(request, quotas, reader) for quotas in request.quotas]
    for done, (start_ms, end_ms) in enumerate(slices, 1):
        batches = [*reader.read(start_ms, end_ms)]
        for replay in replays:
            replay.decide(batches)
        progress(done, len(slices))
    found = [replay.result() for replay in replays]
    if not found or not found[0].evaluations:
        raise usage_not_kept(reader.table.uri)
    return found


class _Replay:
    """One replay, with quotas of its own. Batches up to the start of the request only fill the sample windows.

    The usage does not react to the records: it is what was stored, even where a client would have waited. Usage after
    the beginning of a throttle and before its end counts as deferred.
    """

    def __init__(self, request: ReplayRequest, quotas: Timeline, reader: UsageReader) -> None:
        self._reader = reader
        self._start = request.start
        self._since_ms, self._until_ms = request.since_ms, request.until_ms
        self._window_ms = request.settings.engine.sample_window_ms
        self._quotas = quotas
        self._holds = HeldSpans()
        self._job = Rehearsal(request.settings, request.scope, self._hear)
        self._has_begun = False
        self._result = ReplayResult()
        # By the number of a client: the sample windows in which it was over quota, the last of them, deferred bytes.
        self._windows, self._deferred_bytes = Counter[int](), Counter[int]()
        self._last_window: dict[int, int] = {}

    def decide(self, batches: Sequence[UsageBatch]) -> None:
        """Decide batches, with the checks before each."""
        for batch in batches:
            self._decide(batch)
        if batches and self._holds.spans:
            self._defer(batches)

    def result(self) -> ReplayResult:
        """What it found; no batch may follow."""
        if self._has_begun:
            self._job.wait_until(self._until_ms - 1)
        times, numbers = HeldTimes(self._holds, self._since_ms, self._until_ms), self._reader.numbers
        held = (ClientKey(*one[:2], one.client_id) for one in self._holds.spans if one.client_id is not None)
        for client in {*numbers, *held}:
            number = numbers.get(client, -1)
            outcome = Outcome(self._windows[number], times.ms_of(client), self._deferred_bytes[number])
            self._result.outcomes[client] = outcome
        return self._result

    def _decide(self, batch: UsageBatch) -> None:
        evaluation, job = batch.evaluation, self._job
        at_ms, start = evaluation.evaluated_at_ms, self._start
        snapshot = self._snapshot_of(batch)
        if start is not None and (at_ms, evaluation.batch_id) > (start.at_ms, start.batch_id):
            self._take_up(start, snapshot)
            self._start = start = None
        elif start is None and not self._has_begun:
            job.begin(at_ms)
            self._has_begun = True
        job.wait_until(at_ms)
        job.put_in_force(snapshot)
        decided = job.decide(batch.usage, evaluation, holds=start is None and not batch.is_old)
        self._result.rows += len(batch.clients)
        if self._since_ms <= at_ms < self._until_ms:
            self._result.evaluations += 1
            if start is None:
                self._violate(np.unique(batch.clients[decided.held_rows]).tolist(), at_ms // self._window_ms)

    def _violate(self, clients: Sequence[int], window: int) -> None:
        """Count the sample window of clients that are over quota, each once."""
        for client in clients:
            self._windows[client] += self._last_window.get(client) != window
            self._last_window[client] = window

    def _defer(self, batches: Sequence[UsageBatch]) -> None:
        """Add up what clients used in these batches while they were held.

        A record counts from its own instant on, so later ones change nothing for these batches.
        """
        clients = np.concatenate([batch.clients for batch in batches])
        used_at_ms = np.concatenate([batch.usage.last_ms for batch in batches])
        used_bytes = np.concatenate([batch.used_bytes for batch in batches])
        # What is used in the first millisecond of a throttle came before its record.
        times = HeldTimes(self._holds, max(int(used_at_ms.min()), self._since_ms) - 1, self._until_ms)
        order = np.argsort(clients, kind="stable")
        numbers, first = np.unique(clients[order], return_index=True)
        names = [*self._reader.numbers]
        for number, rows in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
            if held := times.of(names[number]):
                starts_ms, ends_ms = np.array(held).T
                last = np.searchsorted(starts_ms, used_at_ms[rows]) - 1
                waits = (last >= 0) & (used_at_ms[rows] < ends_ms[last])
                self._deferred_bytes[number] += int(used_bytes[rows][waits].sum())

    def _hear(self, publications: Publications, at_ms: Ints) -> None:
        rows = zip(
            publications.clients.to_pylist(),
            publications.excepted,
            publications.claims.quota_type.tolist(),
            publications.holds.tolist(),
            publications.throttle_time_ms.tolist(),
            at_ms.tolist(),
            strict=True,
        )
        for names, excepted, quota_type, holds, throttle_time_ms, instant_ms in rows:
            target = Target.of({**names, "quota_type": QUOTA_TYPES[quota_type]})
            self._holds.hear(target, instant_ms, throttle_time_ms if holds else None, excepted or ())

    def _snapshot_of(self, batch: UsageBatch) -> QuotaSnapshot:
        version = batch.evaluation.quota_version
        return self._quotas.at(batch.evaluation.evaluated_at_ms) if version < 0 else self._quotas.version(version)

    def _take_up(self, start: Start, snapshot: QuotaSnapshot) -> None:
        """Go on from a start, after the batches up to it and before the first one after it."""
        if not self._result.rows:
            self._job.put_in_force(snapshot)
        rows = start.throttles
        for row in rows.to_pylist():
            self._holds.hear_row(row, row["evaluated_at_ms"])
        # The clock that they were written on is not that of the usage.
        until_ms = pa.array(int64s(rows, "evaluated_at_ms") + int64s(rows, "throttle_time_ms"))
        running = rows.set_column(rows.schema.get_field_index("throttled_until_ms"), "throttled_until_ms", until_ms)
        self._job.begin(start.at_ms, running, start.buckets)
        self._has_begun = True
