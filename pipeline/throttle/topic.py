"""The throttle topic as the publisher sees it: one transaction at a time, with the publish marker inside it.

The marker is the committed offset of the consumer group `kquota-<job>` on the marker topic: the next `publish_seq`
to publish. It moves in the same Kafka transaction as the records, so the two can not disagree.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from schemas.throttle_record import ThrottleRecord


class TopicEnd(NamedTuple):
    """The end of the topic.

    Attributes:
        publish_seq: The highest among the committed records; -1 if there are none.
        job: The job that published it; "" if there are none, or if it does not say (written by an older version).
    """

    publish_seq: int
    job: str


class ThrottleTopic(Protocol):
    """Port to the throttle topic. Not safe for several threads; the publisher holds its lock."""

    def open(self) -> int | None:
        """Take the topic over: fence an earlier writer of the same job, abort what it left open.

        Returns:
            The marker, or None if none is committed (a new job, or the group's offsets have expired).

        Raises:
            ClusterUnreachable: no answer within the time-out; may be tried again.
            PermissionMissing: the cluster does not allow it; may be tried again when it is granted.
        """
        ...

    def publish(self, records: Sequence[ThrottleRecord], marker: int) -> None:
        """Publish records and set the marker, all or nothing.

        Args:
            records: In the order of their `publish_seq`; may be empty, which only moves the marker.
            marker: The `publish_seq` that is to be published next.

        Raises:
            RecordTooLarge: one of the records is larger than the topic takes; nothing is published, `open` again.
            PublishUndecided: the outcome is not known or the transaction failed; `open` again and compare markers.
            PermissionMissing: the cluster does not allow it; the same.
            PublisherFenced: the topic has been taken over, or this writer's transaction has timed out; `open` again
                only if the tables still belong to this driver.
        """
        ...

    def end(self) -> TopicEnd:
        """What the committed records say of the last writer; reads the end of every partition."""
        ...

    def close(self) -> None:
        """Leave; aborts an open transaction. Harmless when called twice."""
        ...
