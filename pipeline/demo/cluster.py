"""A real Kafka cluster on this machine: one JVM a broker, each with a folder, ports and a request log of its own."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.demo.broker import FIRST_NODE_ID, BrokerOptions, EmbeddedBroker


class EmbeddedCluster:
    """Brokers of one cluster; the first one is the controller too. Data survive `stop`, `kill` and a new object.

    Use it as a context manager, or call `start` and `stop`. Not thread-safe; start it from a thread that outlives it.
    Topics have one replica unless they are created with more: what a dead broker holds is away until it is back.

    Args:
        directories: one directory per broker, at least one; see `EmbeddedBroker`. Their order gives the ids, from 1.
    """

    def __init__(
        self, directories: Sequence[Path], users: Mapping[str, str] | None = None, options: BrokerOptions | None = None
    ) -> None:
        first = EmbeddedBroker(directories[0], users, options=options)
        others = (
            EmbeddedBroker(directory, users, options=options, joins=first, node_id=node_id)
            for node_id, directory in enumerate(directories[1:], FIRST_NODE_ID + 1)
        )
        self.brokers = (first, *others)

    @property
    def bootstrap_servers(self) -> str:
        """The listeners without sign-in, `host:port,…`. Known from the first start on."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    @property
    def sasl_bootstrap_servers(self) -> str:
        """The SASL_PLAINTEXT listeners, `host:port,…`. Known from the first start on."""
        return ",".join(broker.sasl_bootstrap_servers for broker in self.brokers)

    def start(self) -> None:
        """Start all brokers; returns when each is a member. If one cannot start, none is left. No-op while they run.

        Raises:
            As `EmbeddedBroker.start`.
        """
        for broker in self.brokers:
            broker.directory.mkdir(parents=True, exist_ok=True)  # how many there are is seen from now on
        with ExitStack() as undoing:
            for broker in self.brokers:
                broker.start()
                undoing.callback(broker.stop)
            undoing.pop_all()

    def stop(self) -> None:
        """End all brokers, the controller last: a broker needs it to shut down. Harmless when none runs."""
        for broker in reversed(self.brokers):
            broker.stop()

    def kill(self) -> None:
        """End all brokers with SIGKILL. Harmless when none runs."""
        for broker in reversed(self.brokers):
            broker.kill()

    def ended(self) -> tuple[EmbeddedBroker, ...]:
        """The brokers that have ended by themselves, or were killed from outside; `exit_code` has the code."""
        return tuple(broker for broker in self.brokers if broker.exit_code is not None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
