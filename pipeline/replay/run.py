"""Replays of a range of stored usage, each by the job's own decider and purgatory, with quotas of its own."""

from collections import defaultdict
from collections.abc import Callable, Collection
from itertools import islice, pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.replay.request import Plan, ReplayRequest, Start, Timeline, usage_not_kept
from pipeline.replay.usage_batches import HeldTimes, Outcome, ReplayResult, Span, UsageBatch, UsageReader
from pipeline.throttle.assembly import Rehearsal
from pipeline.throttle.shapes import Publications, holds_users, int64s, types_of
from quota.arrays import Ids, Ints
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from quota.usage import KeyIndex, Pair
from schemas.names import ClientKey
from schemas.throttle_record import Target, holds

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
_NOBODY: Final = 0
"""The number of a target that is never held."""


class _Effects:
    """What the records of a replay do to its clients: how long each is held, and how much it uses while it is held.

    The usage does not react to the records: it is what was stored, even where a client would have waited. Usage at or
    after the beginning of a throttle and before its end counts as deferred.
    """

    def __init__(self, request: ReplayRequest, reader: UsageReader) -> None:
        self._reader = reader
        self._start_ms, self._end_ms = request.since_ms, request.until_ms
        self._window_ms = request.settings.engine.sample_window_ms
        self._counted_until_ms = self._epoch = 0
        # By the number of a target: its running throttle, or the last one.
        self._index, self._targets = KeyIndex(), [Target("", "", "", None)]
        self._is_held = np.zeros(1, np.bool_)
        self._from_ms, self._until_ms = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._excepted: list[Collection[str]] = [()]
        self._spans: dict[Target, list[Span]] = defaultdict(list)
        # By the number of a client: the targets of which it is one, and the sums.
        self._clients_of: dict[tuple[str, str], list[ClientKey]] = defaultdict(list)
        self._users: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        self._target_of = np.zeros((1 + len(QUOTA_TYPES), 0), np.int64)
        self._known = 0
        self._last_window, self._windows, self._deferred_bytes = (np.zeros(0, np.int64) for _ in range(3))

    def hear(self, publications: Publications, at_ms: Ints) -> None:
        """Take in records that are published at these instants, on the clock of the usage."""
        targets = self._numbered(publications.keys, publications.clients, publications.claims.quota_type)
        holds, until_ms = publications.holds, at_ms + publications.throttle_time_ms
        for at in np.flatnonzero(holds & holds_users(publications.excepted)).tolist():
            self._except(targets[at], publications.excepted[at], at_ms[at])
        begin, end = holds & ~self._is_held[targets], ~holds & self._is_held[targets]
        self._from_ms[targets[begin]] = at_ms[begin]
        self._until_ms[targets], self._is_held[targets] = until_ms, holds
        self._count(targets[end], at_ms[end])

    def take_up(self, keys: Pair, running: pa.Table, from_ms: Ints, until_ms: Ints) -> None:
        """Targets that are held before the first record."""
        held = self._numbered(keys, running, types_of(running))
        for target, excepted, at_ms in zip(held, running["except_client_ids"].to_pylist(), from_ms, strict=True):
            if excepted is not None:
                self._except(target, tuple(excepted), at_ms)
        self._is_held[held], self._from_ms[held], self._until_ms[held] = True, from_ms, until_ms

    def use(self, batch: UsageBatch) -> None:
        """Take in usage, before the decisions that follow from it."""
        self._grow()
        clients, used_at_ms = batch.clients, batch.usage.last_ms
        targets = self._target_of[:, clients]
        waits = (used_at_ms < self._until_ms[targets]) & (used_at_ms >= self._from_ms[targets])
        rows = np.flatnonzero(waits.any(axis=0))
        rows = rows[(used_at_ms[rows] >= self._start_ms) & (used_at_ms[rows] < self._end_ms)]
        np.add.at(self._deferred_bytes, clients[rows], batch.used_bytes[rows])

    def violate(self, clients: Ids, at_ms: int) -> None:
        """Count the sample window of clients that are over quota, each once."""
        window = at_ms // self._window_ms
        clients = np.unique(clients)
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
        self._epoch += 1

    def outcomes(self) -> dict[ClientKey, Outcome]:
        """What every client met with; no record follows."""
        self._grow()
        held = self._is_held.nonzero()[0]
        self._count(held, self._until_ms[held])
        times = HeldTimes(self._spans)
        figures = zip(self._windows.tolist(), self._deferred_bytes.tolist(), strict=True)
        found = {client: next(figures) for client in self._reader.numbers}
        return {one: Outcome(windows, times.of(one), deferred) for one, (windows, deferred) in found.items()}

    def _numbered(self, keys: Pair, rows: pa.Table, types: Ints) -> Ids:
        """The numbers of targets, by their keys and by names and quota types."""
        places, new = self._index.add(keys)
        for row, quota_type in zip(rows.take(pa.array(new)).to_pylist(), types[new].tolist(), strict=True):
            target, number = Target.of({**row, "quota_type": QUOTA_TYPES[quota_type]}), len(self._targets)
            self._targets.append(target)
            self._excepted.append(())
            if target.client_id is None:
                self._users[target[:2]][1 + quota_type] = number
                self._grow()
                self._put(self._clients_of[target[:2]], 1 + quota_type)
            else:
                client = self._reader.number_of(ClientKey(target.broker_id, target.user, target.client_id))
                self._grow()
                self._target_of[0, client] = number
        room = 0, len(self._targets) - len(self._is_held)
        self._is_held = np.pad(self._is_held, room)
        self._from_ms, self._until_ms = np.pad(self._from_ms, room), np.pad(self._until_ms, room)
        return places + 1

    def _except(self, target: int, client_ids: Collection[str], at_ms: int) -> None:
        """From an instant on a throttle of a user holds all its clients but these."""
        if self._excepted[target] == client_ids:
            return
        if self._is_held[target]:
            self._count(np.array([target]), np.array([at_ms]))
            self._from_ms[target] = at_ms
        self._excepted[target] = client_ids
        of_user = self._targets[target][:2]
        self._put(self._clients_of[of_user], next(at for at, one in self._users[of_user].items() if one == target))

    def _put(self, clients: list[ClientKey], place: int) -> None:
        """Let clients of one user be held by it, but those that are exceptions."""
        for client in clients:
            target = self._users[client[:2]][place]
            row = {**self._targets[target]._asdict(), "except_client_ids": self._excepted[target]}
            is_held = holds(row, client.user, client.client_id)
            self._target_of[place, self._reader.numbers[client]] = target if is_held else _NOBODY

    def _count(self, targets: Ids, to_ms: Ints) -> None:
        from_ms = np.maximum(self._from_ms[targets], self._counted_until_ms)
        first_ms, last_ms = (np.clip(ms, self._start_ms, self._end_ms) for ms in (from_ms, np.maximum(from_ms, to_ms)))
        for target, first, last in zip(targets.tolist(), first_ms.tolist(), last_ms.tolist(), strict=True):
            if first < last:
                self._spans[self._targets[target]].append(Span(self._epoch, first, last, self._excepted[target]))

    def _grow(self) -> None:
        """Make room for the clients that were read since."""
        new = [*islice(self._reader.numbers, self._known, None)]
        if not new:
            return
        self._known += len(new)
        room = 0, len(new)
        self._target_of = np.pad(self._target_of, ((0, 0), room))
        self._last_window = np.pad(self._last_window, room, constant_values=_NO_WINDOW)
        self._windows, self._deferred_bytes = np.pad(self._windows, room), np.pad(self._deferred_bytes, room)
        for client in new:
            self._clients_of[client[:2]].append(client)
            for place in self._users.get(client[:2], ()):
                self._put([client], place)


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
        decided = job.decide(batch.usage, evaluation, batch.is_old, holds=start is None)
        self._result.rows += len(batch.clients)
        if self._since_ms <= at_ms < self._until_ms:
            self._result.evaluations += 1
            if start is None:
                self._effects.violate(batch.clients[decided.held_rows], at_ms)

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
        self._effects.take_up(self._job.decider.keys_of(rows, types_of(rows)), rows, from_ms, until_ms)
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
