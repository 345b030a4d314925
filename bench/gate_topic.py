"""The other two processes of the gate's benchmark: a transactional publisher, and a plain reader to compare with.

    python -m bench.gate_topic publish SERVERS
    python -m bench.gate_topic read SERVERS

`publish` reads lines such as `throttle 0 49` or `release 7 7` from stdin. It publishes the records of these clients in
one transaction and answers with the `publish_seq` of the first one.

`read` prints `ACTION USER THROTTLED_UNTIL_MS NANOSECONDS` for every record. The nanoseconds say when it received the
record, by the monotonic clock, which all processes of a Linux machine share.
"""

import sys
import time
from typing import Any, Final

from kafka import KafkaConsumer

from pipeline.cluster.access import ClusterAccess
from pipeline.throttle.kafka_topic import KafkaThrottleTopic
from schemas.throttle_record import ThrottleRecord
from schemas.topic_names import MARKER_TOPIC, THROTTLE_TOPIC

CLIENT_ID: Final = "service"
_LEASE_MS: Final = 120_000


def user_of(number: int) -> str:
    """The user of a client."""
    return f"team-{number}"


def publish(servers: str) -> None:
    """Publish what stdin asks for, until stdin ends."""
    topic = KafkaThrottleTopic("bench", THROTTLE_TOPIC, MARKER_TOPIC, ClusterAccess(servers), 15_000)
    topic.open()
    next_seq = 0
    for line in sys.stdin:
        action, first, last = line.split()
        records = [
            _record(action, user_of(number), next_seq + place)
            for place, number in enumerate(range(int(first), int(last) + 1))
        ]
        _say(str(next_seq))
        next_seq += len(records)
        topic.publish(records, next_seq)
    topic.close()


def read(servers: str) -> None:
    """Print the arrival of every record, until the process is killed."""
    consumer: Any = KafkaConsumer(
        THROTTLE_TOPIC, bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    while True:
        for records in consumer.poll(timeout_ms=1_000).values():
            arrived_ns = time.monotonic_ns()
            for record in records:
                throttle = ThrottleRecord.from_value(record.value)
                _say(f"{throttle.action} {throttle.user} {throttle.throttled_until_ms} {arrived_ns}")


def _record(action: str, user: str, publish_seq: int) -> ThrottleRecord:
    length_ms = _LEASE_MS if action == "throttle" else 0
    return ThrottleRecord.model_validate(
        {
            "action": action,
            "cluster": "bench",
            "broker_id": "",
            "user": user,
            "client_id": CLIENT_ID,
            "throttle_time_ms": length_ms,
            "throttled_until_ms": time.time_ns() // 1_000_000 + length_ms,
            "quota_type": "producer_byte_rate",
            "sensor": (user, CLIENT_ID),
            "observed": 2e6,
            "bound": 1e6,
            "window_ms": 10_000,
            "tokens": None,
            "owed_ms": length_ms,
            "cause": "violation" if action == "throttle" else "expired",
            "decision_id": f"{user}/{publish_seq}",
            "publish_seq": publish_seq,
            "batch_id": 0,
            "quota_version": 1,
        }
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"publish": publish, "read": read}[sys.argv[1]](sys.argv[2])
