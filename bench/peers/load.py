"""Steady load of keyed object messages, in a process of its own that costs little.

    python -m bench.peers.load BOOTSTRAP_SERVERS TOPIC EVENTS_PER_SECOND CLIENTS

As `bench.load`, with keys: every message is on the partition of its client. It runs until it is terminated.
"""

import random
import sys
import time
from collections.abc import Sequence

from bench.load import BATCHES_PER_SECOND, BrokerConnection
from bench.peers.backlog import PARTITIONS, TimedBatch, event, partition_of

_TIME_MS = 10**12  # any time of 13 digits


def batches_of(partition: int, clients: Sequence[int], size: int) -> list[TimedBatch]:
    """Batches in which the clients of a partition take turns.

    Args:
        partition: of all these clients.
        clients: not empty.
        size: events of a batch.
    """
    draw = random.Random(partition)
    count = max(len(clients) // size, 1)
    turns = [[clients[(first * size + turn) % len(clients)] for turn in range(size)] for first in range(count)]
    return [TimedBatch(partition, [event(client, _TIME_MS, draw) for client in turn]) for turn in turns]


def run(bootstrap_servers: str, topic: str, events_per_second: int, clients: int) -> None:
    """Send without end."""
    at: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for client in range(clients):
        at[partition_of(f"user-{client % 1000}/client-{client}".encode())].append(client)
    size = events_per_second // BATCHES_PER_SECOND
    by_partition = [batches_of(partition, clients_there, size) for partition, clients_there in enumerate(at)]
    connection = BrokerConnection(bootstrap_servers)
    began, sent = time.monotonic(), 0
    while True:
        for number in range(sent, int((time.monotonic() - began) * BATCHES_PER_SECOND)):
            turn, partition = divmod(number, PARTITIONS)
            batches = by_partition[partition]
            records = batches[turn % len(batches)].at(time.time_ns() // 1_000_000)
            connection.produce(topic, partition, records)
            sent = number + 1
        time.sleep(0.5 / BATCHES_PER_SECOND)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
