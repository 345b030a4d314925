"""Replays of a range of stored usage on the cores of this machine."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from multiprocessing import get_context
from multiprocessing.queues import Queue
from operator import is_
from queue import Empty
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.replay.request import Part, Plan, ReplayRequest, Start, Timeline, usage_not_kept
from pipeline.replay.usage_batches import BINS, Outcome, ReplayResult, UsageBatch, UsageReader
from pipeline.throttle.assembly import engine_of
from pipeline.throttle.shapes import bounds_of, entities_of, int64s, types_of
from quota.holds import Holds
from quota.replay import ReplayEngine
from quota.resolution import recorded_keys
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey


def replay_part(plan: Plan, part: Part, slice_done: Callable[[], None]) -> ReplayResult:
    """Replay the whole range: rates, buckets, and every throttle with its looks and renewals.

    A throttle depends on all usage before it, so one process goes through the whole range in order. It reads the usage
    slice by slice, so that memory does not grow with the range.
    """
    return _replayed(plan, [part], slice_done)[0]


def _replayed(plan: Plan, parts: Sequence[Part], slice_done: Callable[[], None]) -> list[ReplayResult]:
    """The results of parts that `are_alike`: each batch is read and decided once for all of them."""
    reader = UsageReader(plan.request, parts[0].share, len(parts))
    replays = _Replays(plan.request, [plan.request.quotas[part.replay] for part in parts], reader)
    for batches in reader.read(plan.slices):
        for batch in batches:
            replays.decide(batch)
        for _ in parts:
            slice_done()
    return replays.results()


def are_alike(plan: Plan) -> bool:
    """Whether one engine can decide for all parts: they have the same users, and always bound the same types."""
    snapshots = (snapshot for timeline in plan.request.quotas for snapshot in timeline.snapshots)
    return len({part.share for part in plan.parts}) == len({recorded_keys(snapshot) for snapshot in snapshots}) == 1


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
        is_ours = [self.reader.share.has(user) for user in start.throttles["user"].to_pylist()]
        throttles = start.throttles.filter(pa.array(is_ours, pa.bool_()))
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


_WORTH_PROCESSES_MS: Final = 1_800_000
_POLL_SECONDS: Final = 0.2
_LAST_REPORT_SECONDS: Final = 30.0

Progress = Callable[[int, int], None]
"""Called with how many slices are done and how many there are, over all parts."""


def run(plan: Plan, progress: Progress, worth_ms: int = _WORTH_PROCESSES_MS) -> tuple[list[ReplayResult], str]:
    """All replays of a range. The parts of a long range are shared by one process per core.

    Processes and not threads, because the work is many short NumPy calls that hold the interpreter's lock.

    Raises:
        NotFound: The range has no usage.
    """
    cores = len(os.sched_getaffinity(0))
    if cores < 2 or plan.request.until_ms - plan.request.since_ms < worth_ms:
        done, whole = count(1), len(plan.parts) * len(plan.slices)
        pieces = [plan.parts] if are_alike(plan) else [(part,) for part in plan.parts]
        found = [one for parts in pieces for one in _replayed(plan, parts, lambda: progress(next(done), whole))]
        return joined(plan, found), "one process"
    plan = plan.for_processes(cores)
    processes = min(cores, len(plan.parts))
    context = get_context("spawn")
    queue: Queue[None] = context.Queue()
    with ProcessPoolExecutor(processes, context, _report_to, (queue,)) as pool:
        futures = [pool.submit(_replay_reporting, plan, part) for part in plan.parts]
        follow(futures, queue, progress, len(plan.parts) * len(plan.slices))
        return joined(plan, [future.result() for future in futures]), f"{processes} processes"


def joined(plan: Plan, results: Iterable[ReplayResult]) -> list[ReplayResult]:
    """The results of all parts, in the order of `plan.parts`, as one per replay; `NotFound` if there are no batches."""
    of_replay = [ReplayResult() for _ in plan.request.quotas]
    for part, result in zip(plan.parts, results, strict=True):
        of_replay[part.replay].add_users(result)
    if not of_replay[0].evaluations:
        raise usage_not_kept(plan.uri)
    return of_replay


def follow(futures: Sequence[Future[ReplayResult]], queue: "Queue[None]", progress: Progress, whole: int) -> None:
    """Wait for all parts, or for the first that fails, and pass on what they report: `whole` slices."""
    done, waiting = 0, True
    while waiting:
        waiting = bool(wait(futures, _POLL_SECONDS, FIRST_EXCEPTION).not_done)
        waiting = waiting and not any(future.done() and future.exception() for future in futures)
        while not queue.empty():
            queue.get()
            done += 1
            progress(done, whole)
    if any(future.exception() for future in futures):
        return
    with suppress(Empty):  # reports still on their way: a process hands over its result on another one
        while done < whole:
            queue.get(timeout=_LAST_REPORT_SECONDS)
            done += 1
            progress(done, whole)


_queue: "Queue[None] | None" = None
"""In a process of the pool: where slices that are done are reported."""


def _report_to(queue: "Queue[None]") -> None:
    global _queue  # noqa: PLW0603 - a pool hands a queue to its processes only when they start
    _queue = queue


def _replay_reporting(plan: Plan, part: Part) -> ReplayResult:
    queue = _queue
    return replay_part(plan, part, (lambda: None) if queue is None else (lambda: queue.put(None)))
