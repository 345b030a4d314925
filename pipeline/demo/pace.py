"""Keeps one client at its rate, and still while it is blocked. No clock: time comes in."""

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """When the next request is due.

    A client that comes late (it was blocked, or the broker was slow) goes on at its rate from then on; it does
    not make up for lost time, so that a throttled client returns to what it did before, and not to more.

    Attributes:
        bytes_per_second: The rate.
        due_ms: Before this instant nothing is to be sent.
    """

    bytes_per_second: float
    due_ms: float = 0.0

    def wait_ms(self, now_ms: float, blocked_ms: float) -> float:
        """How long to hold off at `now_ms`; 0 = go. `blocked_ms` is what is left of a throttle."""
        return max(0.0, blocked_ms, self.due_ms - now_ms)

    def used(self, size_bytes: int, now_ms: float) -> None:
        """So much was sent or read at `now_ms`: the next request is due when the rate allows it.

        A delay up to the span of one request is made good, or rounding and scheduling would lower the rate.
        """
        span_ms = size_bytes / self.bytes_per_second * 1000
        self.due_ms = max(self.due_ms, now_ms - span_ms) + span_ms
