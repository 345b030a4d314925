"""How tests wait: until something is so, with more patience than any slow machine needs.

A limit here guards against waiting for ever and says nothing about how fast something must be: bench/ measures that.
"""

import time
from collections.abc import Callable
from typing import Final

PATIENCE_SECONDS: Final = 240.0
"""How long a test waits for one thing; also the time-out of what a test calls."""

_FIRST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 0.25
_NEVER_SECONDS: Final = 0.5


def wait_until(is_so: Callable[[], bool], what: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Return as soon as `is_so()`.

    Args:
        is_so: Asked at once, then at growing pauses of 5 to 250 ms, and once more at the end.
        what: What is waited for, for the failure.
        patience_seconds: When to give up.

    Raises:
        AssertionError: It was not so in all that time.
    """
    deadline, pause_seconds = time.monotonic() + patience_seconds, _FIRST_PAUSE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            assert is_so(), f"waited {patience_seconds:g} s for {what}"
            return
        time.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 1.3, _LONGEST_PAUSE_SECONDS)


def never(is_so: Callable[[], bool], for_seconds: float = _NEVER_SECONDS) -> bool:
    """Whether something is not so all the time for a while; a slow machine may look less often, and that is all."""
    deadline = time.monotonic() + for_seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(_FIRST_PAUSE_SECONDS)
    return not is_so()
