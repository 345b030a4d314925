"""The broker's own quotas: how soon a client that is over is slowed, and where its rate ends, on one broker and on two.

Each client is a plain kafka-python producer with a user and a quota T of its own, set on every broker. It wants k · T,
shared evenly by the brokers, and each request waits for the answer to the one before it.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any, Final

import numpy as np
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.brokers.entity import NativeEntity
from pipeline.brokers.native_quotas import NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.cluster import EmbeddedCluster
from pipeline.demo.sign_in import plain_sign_in
from pipeline.demo.stock_client import StockProducer, StockWork, broker_throttle_ms

BOUND: Final = 50_000.0
REQUESTS_PER_SECOND: Final = 20.0
SETTLED_SECONDS: Final = 15.0
_TOPIC: Final = "native"
_PROBE_BYTES: Final = 15_000
_PROBE_BOUND: Final = 1_000.0
_PROBES: Final = 30
_LOOK_SECONDS: Final = 0.25


def long_run(folder: Path, brokers: int, overloads: Sequence[float], seconds: float) -> dict[float, float]:
    """Rate ÷ T of a client for each k, all at once; without the first seconds, in which its burst goes through.

    Args:
        folder: for the brokers; empty.
        brokers: how many.
        overloads: each k.
        seconds: in all.
    """
    who = {overload: f"k-{overload:g}" for overload in overloads}
    cluster = EmbeddedCluster(
        [folder / f"broker-{number}" for number in range(brokers)], {user: f"{user}-secret" for user in who.values()}
    )
    with ExitStack() as stack:
        stack.enter_context(cluster)
        _create_topic(cluster.brokers)
        with NativeQuotas(ClusterAccess(cluster.bootstrap_servers)) as quotas:
            quotas.alter({NativeEntity.of_row(user, ""): {"producer_byte_rate": BOUND} for user in who.values()})
        stopping = Event()
        producers = {overload: _producer(cluster, user, overload, stopping) for overload, user in who.items()}
        for producer in producers.values():
            stack.callback(producer.close)
            producer.start()
        time.sleep(SETTLED_SECONDS)
        at: list[float] = []
        sent: dict[float, list[float]] = {overload: [] for overload in overloads}
        end = time.monotonic() + max(seconds - SETTLED_SECONDS, 2.0)
        while time.monotonic() < end:
            at.append(time.monotonic())
            for overload, producer in producers.items():
                sent[overload].append(float(sum(producer.sent_bytes)))
            time.sleep(_LOOK_SECONDS)
    return {overload: mean_rate(at, totals) / BOUND for overload, totals in sent.items()}


def mean_rate(at: Sequence[float], totals: Sequence[float]) -> float:
    """The mean of the rates over every half of a time.

    A broker lets a burst through each time its window has passed, about every 11 s. What is between two instants
    depends on where the bursts are; the mean over many beginnings hardly does.

    Args:
        at: instants in seconds, ascending.
        totals: what was sent until each of them.
    """
    half = (at[-1] - at[0]) / 2
    begins = np.linspace(at[0], at[0] + half, 1000)
    sent = np.interp(begins + half, at, totals) - np.interp(begins, at, totals)
    return float(np.mean(sent) / half)


def first_slowed_ms(folder: Path) -> list[float]:
    """From the produce call of a first request that is over its quota until the broker has muted the client.

    The answer to that request says for how long, and the broker takes nothing more until then. Each probe is a
    client-id that was never seen before. Gives the milliseconds of each.
    """
    taken_ms = []
    with EmbeddedBroker(folder) as broker:
        _create_topic([broker])
        with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as quotas:
            names = [f"probe-{number}" for number in range(_PROBES)]
            quotas.alter({NativeEntity.of_row("", name): {"producer_byte_rate": _PROBE_BOUND} for name in names})
        for name in names:
            producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id=name, linger_ms=0)
            producer.partitions_for(_TOPIC)
            began = time.perf_counter()
            producer.send(_TOPIC, bytes(_PROBE_BYTES)).get(30)
            taken_ms.append((time.perf_counter() - began) * 1000)
            _, told_ms = broker_throttle_ms(producer)
            producer.close(timeout=0)
            if not told_ms > 0:
                message = f"the broker must throttle {name}; its answer told {told_ms} ms"
                raise RuntimeError(message)
    return taken_ms


def _create_topic(brokers: Sequence[EmbeddedBroker]) -> None:
    """A partition on each broker."""
    admin: Any = KafkaAdminClient(bootstrap_servers=brokers[0].bootstrap_servers)
    assignments = {partition: [broker.node_id] for partition, broker in enumerate(brokers)}
    settings = {"retention.bytes": "67108864"}
    admin.create_topics({_TOPIC: {"assignments": assignments, "configs": settings}}, wait_for_metadata=True)
    admin.close()


def _producer(cluster: EmbeddedCluster, user: str, overload: float, stopping: Event) -> StockProducer:
    sign_in = plain_sign_in(cluster.sasl_bootstrap_servers, user, f"{user}-secret")
    options = {**sign_in, "client_id": "native", "max_request_size": 8 << 20}
    shares = [1 / len(cluster.brokers)] * len(cluster.brokers)
    work = StockWork("produce", _TOPIC, shares, overload * BOUND, REQUESTS_PER_SECOND, options)
    return StockProducer(work, stopping)
