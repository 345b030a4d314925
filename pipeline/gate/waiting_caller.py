"""One caller that waits at the gate until its client is no longer throttled."""

from collections.abc import Callable
from typing import Protocol

from purgatory.delayed_operation import DelayedOperation
from purgatory.memory_pool import Allocation
from purgatory.timer import Timer
from schemas.names import ClientKey


class Gatekeeper(Protocol):
    """What a waiting caller asks: when does the throttle of its client end, and is there memory for it then?"""

    def blocked_until_ms(self, client: ClientKey) -> int:
        """End of the client's throttle on the timer's clock, exclusive; 0 when the client is not throttled."""
        ...

    def now_ms(self) -> int:
        """The time on the timer's clock."""
        ...

    def find_memory(self, caller: "WaitingCaller") -> bool:
        """Whether there is memory for a caller whose throttle is over. If not, the caller is asked again later."""
        ...


class WaitingCaller(DelayedOperation):
    """A delayed operation that completes when its client's throttle has ended: by a release, or by its end.

    It asks for the end again whenever a record of the client arrives and when the time-out fires. So a renewal that
    is published before the caller wakes makes it wait on, and an earlier end wakes it earlier.

    Attributes:
        client: Who waits.
        keys: Watch keys: the client on the whole cluster, and on its broker if one was named.
        size_bytes: What its request takes in memory; 0 takes none.
        has_memory: It does not wait for memory (any more). Guarded by the lock of the gatekeeper.
        allocation: Its bytes in the pool; None while it waits for memory, and when it needs none of the pool.
    """

    __slots__ = (
        "_gatekeeper",
        "_timer",
        "_until_ms",
        "_wake",
        "allocation",
        "client",
        "has_memory",
        "keys",
        "size_bytes",
    )

    def __init__(
        self, client: ClientKey, size_bytes: int, gatekeeper: Gatekeeper, timer: Timer, wake: Callable[[], None]
    ) -> None:
        """Make a caller that is not watched yet and has no time-out and no memory yet.

        Args:
            client: Who waits; `broker_id` "" means only throttles of the whole cluster count.
            size_bytes: What its request takes in memory.
            gatekeeper: Says when the throttle ends, and whether there is memory then.
            timer: Of the purgatory it will wait in.
            wake: Called once, from any thread, when the caller may go on. It must be quick.
        """
        super().__init__(delay_ms=0)
        self.client = client
        cluster_wide = client._replace(broker_id="")
        self.keys = (cluster_wide,) if client == cluster_wide else (cluster_wide, client)
        self.size_bytes = size_bytes
        self.has_memory = False
        self.allocation: Allocation | None = None
        self._gatekeeper = gatekeeper
        self._timer = timer
        self._wake = wake
        self._until_ms: int | None = None

    def try_complete(self) -> bool:
        """Complete if the throttle has ended; otherwise make sure that the time-out is at the end of the throttle."""
        until_ms = self._gatekeeper.blocked_until_ms(self.client)
        self.delay_ms = max(until_ms - self._gatekeeper.now_ms(), 0) if until_ms else 0
        moved = self._until_ms is not None and until_ms != self._until_ms
        self._until_ms = until_ms
        if self.delay_ms == 0:
            return (self.has_memory or self._gatekeeper.find_memory(self)) and self.force_complete()
        if moved:
            self._restart_timer()
        return False

    def on_complete(self) -> None:
        """Wake the caller."""
        self._wake()

    def run(self) -> None:
        """The time-out: complete, unless the throttle was renewed meanwhile or there is no memory yet."""
        if not self.safe_try_complete() and self.delay_ms > 0:
            self._restart_timer()

    def _restart_timer(self) -> None:
        if not self.is_completed:
            self._timer.add(self)
            if self.is_completed:  # completed between the two lines above, so that its own cancel came too early
                self.cancel()
