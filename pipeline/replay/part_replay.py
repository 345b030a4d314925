"""One replay of a range, for all clients or for a share of the users: batch by batch, with the looks between them."""

from collections.abc import Callable

import numpy as np

from pipeline.replay.outcome import BINS, Outcome, ReplayResult
from pipeline.replay.request import Part, Plan, ReplayRequest
from pipeline.replay.usage_batches import UsageBatch
from pipeline.throttle.assembly import engine_of
from pipeline.throttle.reasons import entities_of
from quota.holds import Holds
from quota.replay_engine import ReplayEngine
from quota.snapshot import QuotaSnapshot


def replay_part(plan: Plan, part: Part, slice_done: Callable[[], None]) -> ReplayResult:
    """Replay the whole range: rates, buckets, and every throttle with its looks and renewals.

    A throttle depends on all usage before it, so one process goes through the whole range in order. It reads the usage
    slice by slice, so that memory does not grow with the range.

    Args:
        plan: What is replayed.
        part: Which replay, and for which users.
        slice_done: Called after each slice.
    """
    replay = _Replay(plan.request, part)
    for batches in replay.reader.read(plan.slices):
        for batch in batches:
            replay.decide(batch)
        slice_done()
    return replay.result()


class _Replay:
    """The engine and the holds of one replay."""

    def __init__(self, request: ReplayRequest, part: Part) -> None:
        self.reader = request.reader(part.share)
        self._since_ms, self._until_ms = request.since_ms, request.until_ms
        self._quotas = request.quotas[part.replay]
        self._engine = engine_of(ReplayEngine, request.settings, request.scope)
        self._holds = Holds(request.slicing, self._engine.owed_at, request.since_ms, request.until_ms, BINS)
        self._in_force: QuotaSnapshot | None = None
        self._result = ReplayResult()

    def decide(self, batch: UsageBatch) -> None:
        """Take the looks before a batch, then decide the batch."""
        self._holds.advance(batch.at_ms)
        self._put_in_force(batch)
        usage = batch.usage
        self._holds.use(usage.clients, usage.last_ms, batch.used_bytes)
        throttles = self._engine.throttles(usage, batch.at_ms)
        if len(throttles.rows):
            self._holds.decide(usage.clients[throttles.rows], throttles, batch.at_ms)
        self._result.rows += len(usage.clients)
        self._count(batch.at_ms)

    def _count(self, at_ms: int) -> None:
        if at_ms >= self._since_ms:
            self._result.evaluations += 1
            place = (at_ms - self._since_ms) * BINS // max(self._until_ms - self._since_ms, 1)
            self._result.has_batch[min(place, BINS - 1)] = True

    def result(self) -> ReplayResult:
        """What the replay found; no batch may follow."""
        totals = self._holds.finish()
        figures = zip(totals.windows.tolist(), totals.throttle_ms.tolist(), totals.deferred_bytes.tolist(), strict=True)
        self._result.outcomes = {
            client: Outcome(*of_client) for client, of_client in zip(self.reader.numbers, figures, strict=False)
        }
        self._result.throttle_ms_by_bin = self._holds.throttle_ms_by_bin
        return self._result

    def _put_in_force(self, batch: UsageBatch) -> None:
        """Load the quotas of the batch. If they differ from those before, look at the throttles that they change."""
        version = batch.quota_version
        snapshot = self._quotas.at(batch.at_ms) if version is None else self._quotas.version(version)
        if snapshot is self._in_force:
            return
        self._engine.load_quotas(snapshot)
        self._in_force = snapshot
        held = self._holds.held.tolist()
        if held:
            clients = list(self.reader.numbers)
            names = entities_of([clients[number] for number in held])
            self._engine.resolve_again(np.array(held), names, batch.at_ms)
            self._holds.look_after_edit(batch.at_ms)
