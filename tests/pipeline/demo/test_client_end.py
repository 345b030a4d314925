"""What a client of the demo says when its work fails."""

from threading import Event

import pytest
from kafka.errors import IllegalStateError

from pipeline.demo.clients import DemoClientThread
from pipeline.demo.plan import DemoClient
from tests.waiting import PATIENCE_SECONDS

CLIENT = DemoClient("alice", "etl", "produce", "demo.orders", 100_000, 2.0)
CAUSE = "Producer is closed forcefully"


class Failing(DemoClientThread):
    """Its broker is gone; it is told to stop before its first failure, or after the second."""

    def __init__(self, stopping: Event, failures_before_the_end: int) -> None:
        super().__init__(CLIENT, {}, lambda *_: 0, stopping, Event())
        self._left = failures_before_the_end
        self._told = stopping

    def _produce(self) -> None:
        if self._left == 0:
            self._told.set()
        self._left -= 1
        raise IllegalStateError(CAUSE)


@pytest.mark.parametrize("failures_before_the_end", [0, 1])
def test_a_failure_is_told_unless_the_client_is_to_stop(
    caplog: pytest.LogCaptureFixture, failures_before_the_end: int
) -> None:
    client = Failing(Event(), failures_before_the_end)
    client.start()
    client.join(PATIENCE_SECONDS)
    told = [f"alice/etl: IllegalStateError: {CAUSE}; retrying"] * failures_before_the_end
    assert [record.getMessage() for record in caplog.records] == told
