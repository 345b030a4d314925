"""Until when is a <user, client-id> blocked, by the wall clock?

For a program that asks before it sends. A program that wants to wait until it may go on uses `pipeline.gate.gate`.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline.clock import wall_ms
from pipeline.gate.follower import KafkaFollower
from pipeline.gate.throttle_state import ThrottleState
from schemas.names import THROTTLE_TOPIC
from schemas.throttle_record import ThrottleRecord

_PRUNE_EVERY_SECONDS: Final = 60.0


class ThrottleView:
    """Follows the throttle topic and answers from memory.

    It begins at the start of the compacted topic, so that a program that has just started knows the running
    throttles. It reads committed records only. While the topic can not be reached it tries again without end; the
    throttles it knows end by themselves.

    Args:
        bootstrap_servers: Of the cluster that has the topic.
        topic: The throttle topic.
        cluster: See `ThrottleState`.
        options: Further kafka-python options, as of `client_properties.kafka_options`.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str = THROTTLE_TOPIC,
        cluster: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.state = ThrottleState(cluster)
        self._follower = KafkaFollower(bootstrap_servers, topic, options)
        self._prune_at = time.monotonic() + _PRUNE_EVERY_SECONDS

    @property
    def unreadable(self) -> int:
        """The number of records that were skipped because they are not throttle records."""
        return self._follower.unreadable

    def start(self) -> None:
        """Begin to follow the topic on a daemon thread; returns at once. Call it once."""
        self._follower.start(self._apply)

    def wait_until_caught_up(self, timeout_seconds: float) -> bool:
        """Wait until everything that was on the topic at the start is known; False if that takes longer."""
        return self._follower.wait_until_caught_up(timeout_seconds)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop following. Known throttles stay until their own end. May be called twice, or before `start`."""
        self._follower.close(timeout_seconds)

    def blocked_until_ms(self, user: str, client_id: str, broker_id: str = "") -> int:
        """See `ThrottleState.blocked_until_ms`."""
        return self.state.blocked_until_ms(user, client_id, broker_id)

    def remaining_ms(self, user: str, client_id: str, now_ms: int, broker_id: str = "") -> int:
        """See `ThrottleState.remaining_ms`."""
        return self.state.remaining_ms(user, client_id, now_ms, broker_id)

    def _apply(self, records: Sequence[ThrottleRecord], is_new_topic: bool) -> None:
        if is_new_topic:
            self.state.forget()
        for record in records:
            self.state.apply(record)
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + _PRUNE_EVERY_SECONDS
            self.state.prune(wall_ms())
