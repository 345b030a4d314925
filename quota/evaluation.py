"""The facts from which a record can be computed again."""

from collections.abc import Iterable
from dataclasses import dataclass

from quota.replay import batch_order


def begins_time_epoch(last_ms: int, ring_ms: int, now_ms: Iterable[int | None]) -> bool:
    """Whether a batch begins a new time epoch: a clock was ahead, was set right, and event time must not wait for it.

    Args:
        last_ms: `evaluated_at_ms` of the batch before.
        ring_ms: N · w, the span of the rates' sample windows.
        now_ms: what each clock says about now: the newest event time of the batch, the newest append time of its
            messages, the driver's wall clock when it was collected. None: not known.

    Returns:
        True if all of them agree that now is before `last_ms` by more than the ring. A backlog has old events and is
        read at a later time of the driver's clock; so it begins none.
    """
    return all(one_ms is not None and one_ms < last_ms - ring_ms for one_ms in now_ms)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The facts behind a decision or a look.

    Attributes:
        query_id: Spark's id of the streaming query; "" before the first batch.
        batch_id: The batch; for a look the last batch whose usage is in the engine; -1 before the first.
        evaluated_at_ms: The event time of the evaluation.
        quota_version: The version of the quota table it was made with.
        time_epoch: How often event time had begun anew by then; `evaluated_at_ms` grows within an epoch only.
    """

    query_id: str
    batch_id: int
    evaluated_at_ms: int
    quota_version: int
    time_epoch: int = 0

    def is_after(self, other: "Evaluation", last_query_id: str) -> bool:
        """True if its batch was decided after the other one's; False for the same. See `quota.replay.batch_order`."""
        return self.order(last_query_id) > other.order(last_query_id)

    def order(self, last_query_id: str) -> tuple[int, int, bool, int, str]:
        """See `quota.replay.batch_order`."""
        return batch_order(self.time_epoch, self.evaluated_at_ms, self.query_id, self.batch_id, last_query_id)
