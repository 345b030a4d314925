"""What a record is recomputable from."""

from dataclasses import dataclass

from quota.replay import batch_order


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The facts behind a decision or a look.

    Attributes:
        query_id: Spark's id of the streaming query; "" before the first batch.
        batch_id: The batch, or for a look the last batch whose usage the engine holds; -1 before the first.
        evaluated_at_ms: Event time of the evaluation.
        quota_version: Version of the quota table it was made with.
    """

    query_id: str
    batch_id: int
    evaluated_at_ms: int
    quota_version: int

    def is_after(self, other: "Evaluation", last_query_id: str) -> bool:
        """Whether its batch was decided after the other's; False for the same. See `quota.replay.batch_order`."""
        return self.order(last_query_id) > other.order(last_query_id)

    def order(self, last_query_id: str) -> tuple[int, bool, int, str]:
        """See `quota.replay.batch_order`."""
        return batch_order(self.evaluated_at_ms, self.query_id, self.batch_id, last_query_id)
