"""How long before its end a throttle is looked at.

A renewal must reach the client before it wakes. From the instant a debt becomes visible to the instant the client
knows, there pass: up to one trigger until usage is in the engine, the time to publish, the client's own lag. Hence

    lead = trigger + p99 of the publish lag, as measured + client lag, and never below a floor.
"""

from collections import deque
from typing import Final

_MEASURED: Final = 512
_EVERY: Final = 16


class RenewLead:
    """Follows the publish lag and gives the lead.

    Args:
        trigger_ms: How often a micro-batch starts.
        client_lag_ms: From the record being readable to the client obeying it.
        min_lead_ms: The floor.
    """

    def __init__(self, trigger_ms: int, client_lag_ms: int, min_lead_ms: int) -> None:
        self._fixed_ms = trigger_ms + client_lag_ms
        self._min_ms = min_lead_ms
        self._lags_ms: deque[int] = deque(maxlen=_MEASURED)
        self._observed = 0
        self._lead_ms = max(self._fixed_ms, min_lead_ms)

    @property
    def lead_ms(self) -> int:
        """The lead now, in milliseconds."""
        return self._lead_ms

    def observe(self, publish_lag_ms: int) -> None:
        """Take in how long one publishing took; the p99 is of the last 512 and taken anew every 16."""
        self._lags_ms.append(publish_lag_ms)
        self._observed += 1
        if self._observed % _EVERY == 0:
            ordered = sorted(self._lags_ms)
            p99_ms = ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
            self._lead_ms = max(self._fixed_ms + p99_ms, self._min_ms)
