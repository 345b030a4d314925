"""Stock clients of brokers that know nothing of kquota: their sign-in, their work, and a topic on each broker."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from kafka import KafkaAdminClient

from pipeline.demo.broker import EmbeddedBroker, EmbeddedCluster, plain_sign_in
from tests.integration.stock_client import StockProducer, StockWork


def stock_cluster(folder: Path, brokers: int, users: Iterable[str]) -> EmbeddedCluster:
    """Brokers that are not started yet, for users whose password is their name."""
    folders = [folder / f"broker-{number}" for number in range(1, brokers + 1)]
    return EmbeddedCluster(folders, {user: user for user in users})


def stock_work(
    broker: EmbeddedBroker | EmbeddedCluster,
    user: str,
    topic: str,
    shares: Sequence[float],
    bytes_per_second: float,
    requests_per_second: float,
    **options: Any,
) -> StockWork:
    """What a producer of such a user does, whose client-id is its name."""
    options = {**plain_sign_in(broker.sasl_bootstrap_servers, user, user), "client_id": user, **options}
    return StockWork(topic, shares, bytes_per_second, requests_per_second, options)


@contextmanager
def stock_producers(works: Mapping[Any, StockWork]) -> Iterator[dict[Any, StockProducer]]:
    """A producer for each work, by the same key; not started. They end with the block."""
    with ExitStack() as stack:
        producers = {}
        for key, work in works.items():
            producers[key] = StockProducer(work, Event())
            stack.callback(producers[key].close)
        yield producers


def topic_on_each(brokers: Sequence[EmbeddedBroker], topic: str) -> list[str]:
    """Create a topic with a partition on each broker; returns the brokers' ids."""
    admin: Any = KafkaAdminClient(bootstrap_servers=brokers[0].bootstrap_servers)
    assignments = {partition: [broker.node_id] for partition, broker in enumerate(brokers)}
    settings = {"retention.bytes": "67108864"}
    admin.create_topics({topic: {"assignments": assignments, "configs": settings}}, wait_for_metadata=True)
    admin.close()
    return [str(broker.node_id) for broker in brokers]
