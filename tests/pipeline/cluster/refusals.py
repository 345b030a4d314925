"""The error of a client that cannot connect, on a machine of any speed."""

from collections.abc import Callable

import pytest

from pipeline.errors import PipelineError
from tests.waiting import PATIENCE_SECONDS

# kafka-python tries for the whole time it is given, so the first time is short.
_FIRST_TIMEOUT_MS = 300
_NOTHING_WAS_HEARD = ("no answer within", "Connection timed out", "does not answer the TLS handshake")


def refusal_of(connect: Callable[[int], object], first_timeout_ms: int = _FIRST_TIMEOUT_MS) -> PipelineError:
    """What `connect` raises, called with a time-out in ms; called again with a longer one if nothing was heard."""
    timeout_ms = first_timeout_ms
    while True:
        with pytest.raises(PipelineError) as refused:
            connect(timeout_ms)
        was_heard = not any(words in str(refused.value) for words in _NOTHING_WAS_HEARD)
        if was_heard or timeout_ms > PATIENCE_SECONDS * 1_000:
            return refused.value
        timeout_ms *= 4
