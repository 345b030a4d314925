"""What a record is recomputable from."""

from dataclasses import dataclass


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
