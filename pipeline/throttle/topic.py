"""The throttle topic as the publisher sees it: one transaction at a time, with the publish marker inside it.

The marker is the committed offset of the consumer group `kquota-<job>` on the marker topic: the next `publish_seq`
to publish. It moves in the same Kafka transaction as the records, so the two can not disagree.
"""

from collections.abc import Sequence
from typing import Protocol

from schemas.throttle_record import ThrottleRecord


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

        Raises:
            PublishUndecided: the outcome is not known or the transaction failed; `open` again and compare markers.
            PermissionMissing: the cluster does not allow it; the same.
            Fenced: another driver of the same job has taken over; this one must stop.
        """
        ...

    def highest_published(self) -> int:
        """The highest `publish_seq` among committed records on the topic, -1 if there are none."""
        ...

    def close(self) -> None:
        """Leave; aborts an open transaction. Harmless when called twice."""
        ...
