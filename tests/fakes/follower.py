"""A follower of the topic, in memory, under the contract of `KafkaFollower`."""

from collections.abc import Sequence

from pipeline.gate.follower import FollowerState, KafkaFollower, RecordHandler
from schemas.throttle_record import ThrottleRecord
from tests.fakes.topic import TopicBroker


class MemoryFollower(KafkaFollower):
    """Hands records over on the thread that publishes them; reads nothing if the broker is away at the start."""

    unreadable = 0
    state: FollowerState = "connecting"

    def __init__(self, broker: TopicBroker) -> None:
        self._broker = broker
        self._handle_records: RecordHandler = lambda _records, _is_new_topic: None

    def start(self, handle_records: RecordHandler) -> None:
        if self._broker.is_reachable and self.state != "closed":
            self._handle_records = handle_records
            self._give(self._broker.records)
            self._broker.readers.append(self._give)
            self.state = "following"

    def restart(self) -> None:
        if self.state == "following":
            self._give(self._broker.records)

    def wait_until_caught_up(self, timeout_seconds: float) -> bool:
        del timeout_seconds
        return self.state == "following"

    def close(self, timeout_seconds: float = 5.0) -> None:
        del timeout_seconds
        self.state = "closed"

    def _give(self, records: Sequence[ThrottleRecord]) -> None:
        if records and self.state != "closed":
            self._handle_records(records, False)
