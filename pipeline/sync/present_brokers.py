"""Which brokers count as part of the cluster: one that is being restarted does."""

from collections.abc import Iterable
from typing import Final

GONE_AFTER_MS: Final = 60_000
"""How long a broker must be away before it counts as gone: longer than a restart."""


class PresentBrokers:
    """The brokers of the cluster, with those that are away for a moment.

    No level may be below T ÷ brokers. If a broker that is being restarted counted as gone, a restart of all brokers,
    one by one, would raise every such level at each of them. Without it the others give somewhat less than T, until it
    is back or counts as gone.
    """

    def __init__(self) -> None:
        self._seen_at_ms: dict[str, int] = {}

    def seen(self, broker_ids: Iterable[str], now_ms: int) -> tuple[str, ...]:
        """The brokers that count, after a look.

        Args:
            broker_ids: Those that are up.
            now_ms: The instant.
        """
        known = {name: at_ms for name, at_ms in self._seen_at_ms.items() if now_ms - at_ms < GONE_AFTER_MS}
        self._seen_at_ms = {**known, **dict.fromkeys(broker_ids, now_ms)}
        return tuple(sorted(self._seen_at_ms))
