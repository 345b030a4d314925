"""One caller that waits at the gate until its client is no longer throttled."""

from collections.abc import Callable
from typing import Protocol

from purgatory.delayed_operation import DelayedOperation
from purgatory.memory_pool import Allocation
from purgatory.timer import Timer
from schemas.client_key import ClientKey


class Blocking(Protocol):
    """What a hold asks: until when is its client blocked?"""

    def blocked_until_ms(self, client: ClientKey) -> int:
        """End of the client's throttle on the timer's clock, exclusive; 0 when nothing blocks it."""
        ...

    def now_ms(self) -> int:
        """The timer's clock."""
        ...


class Hold(DelayedOperation):
    """A delayed operation that completes when its client's throttle has ended: by a release, or by its end.

    The end is asked for anew whenever a record of the client arrives and when the time-out fires, so a renewal
    that is published before the caller wakes makes it wait on, and an end that was moved forward wakes it sooner.

    Attributes:
        client: Who waits.
        keys: Watch keys: the client on the whole cluster, and on its broker if one was named.
        charge: The bytes it holds in the pool; None while it waits for room, and when it has none.
    """

    __slots__ = ("_blocking", "_timer", "_until_ms", "_wake", "charge", "client", "keys")

    def __init__(self, client: ClientKey, blocking: Blocking, timer: Timer, wake: Callable[[], None]) -> None:
        """Make a hold that is neither watched nor timed yet.

        Args:
            client: Who waits; `broker_id` "" means the cluster's throttles alone.
            blocking: Until when.
            timer: Of the purgatory it will wait in.
            wake: Called once, from any thread, when the caller may go on; must be quick.
        """
        super().__init__(delay_ms=0)
        self.client = client
        cluster_wide = client._replace(broker_id="")
        self.keys = (cluster_wide,) if client == cluster_wide else (cluster_wide, client)
        self.charge: Allocation | None = None
        self._blocking = blocking
        self._timer = timer
        self._wake = wake
        self._until_ms: int | None = None

    def try_complete(self) -> bool:
        """Complete if the throttle has ended; else see to it that the time-out is at its end."""
        until_ms = self._blocking.blocked_until_ms(self.client)
        remaining_ms = until_ms - self._blocking.now_ms() if until_ms else 0
        if remaining_ms <= 0:
            return self.force_complete()
        self.delay_ms = remaining_ms
        moved = self._until_ms is not None and until_ms != self._until_ms
        self._until_ms = until_ms
        if moved:
            self._restart_timer()
        return False

    def on_complete(self) -> None:
        """Wake the caller."""
        self._wake()

    def run(self) -> None:
        """The end has come: complete, unless the throttle was renewed meanwhile."""
        if not self.safe_try_complete():
            self._restart_timer()

    def _restart_timer(self) -> None:
        if not self.is_completed:
            self._timer.add(self)
            if self.is_completed:  # between the two lines above; its own cancel came too early
                self.cancel()
