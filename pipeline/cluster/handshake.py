"""Ends a TLS handshake that the other side does not go on with.

kafka-python 3.0 waits for it without end, and nothing else of the client goes on: a port that accepts connections and
says nothing (a firewall, a broker that hangs) would hold a command or a job for ever.
"""

import ssl
import time
from typing import Any
from weakref import WeakKeyDictionary

from kafka.net.selector import NetworkSelector

TIMED_OUT = "I/O wait timed out"
"""Words of the error that kafka-python raises in a wait that has taken too long."""


class BoundedHandshakes(NetworkSelector):  # type: ignore[misc] # kafka-python has no types
    """The event loop of a kafka-python client, with an end for each TLS handshake.

    Args:
        timeout_ms: How long a handshake may take, from the first time that it waits for the other side.
        settings: As kafka-python gives them to its loop.
    """

    def __init__(self, timeout_ms: int, **settings: Any) -> None:
        super().__init__(**settings)
        self._timeout_seconds = timeout_ms / 1000
        self._ends: WeakKeyDictionary[ssl.SSLSocket, float] = WeakKeyDictionary()

    def wait_read(self, fileobj: Any, timeout_at: float | None = None) -> Any:
        """Wait until there is something to read; during a handshake no longer than its end.

        Args:
            fileobj: What is waited for.
            timeout_at: On the monotonic clock, in seconds; None = no end, except for a handshake.
        """
        # A socket has a TLS version from the end of its handshake on.
        if timeout_at is None and isinstance(fileobj, ssl.SSLSocket) and fileobj.version() is None:
            timeout_at = self._ends.setdefault(fileobj, time.monotonic() + self._timeout_seconds)
        return super().wait_read(fileobj, timeout_at)
