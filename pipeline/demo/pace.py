"""Keeps one client at its rate, and makes it wait while it is throttled. Reads no clock: the caller gives the time."""

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """When the next request is due.

    A client that is late (it was blocked, or the broker was slow) continues at its rate. It does not catch up, so a
    throttled client returns to the rate it had before and not to a higher one.

    Attributes:
        bytes_per_second: The rate.
        due_ms: Nothing is sent before this instant.
    """

    bytes_per_second: float
    due_ms: float = 0.0

    def wait_ms(self, now_ms: float, blocked_ms: float) -> float:
        """How long to hold off at `now_ms`; 0 = go. `blocked_ms` is what is left of a throttle."""
        return max(0.0, blocked_ms, self.due_ms - now_ms)

    def used(self, size_bytes: int, now_ms: float) -> None:
        """Record that `size_bytes` were sent or read at `now_ms`; the next request is due when the rate allows it.

        A delay up to the span of one request is caught up. Otherwise rounding and scheduling would lower the rate.
        """
        span_ms = size_bytes / self.bytes_per_second * 1000
        self.due_ms = max(self.due_ms, now_ms - span_ms) + span_ms
