"""Under steady load: how long an event takes to become a result, and how long nothing comes after kill -9."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.load import BrokerConnection
from bench.peers.backlog import CLOSING_USER, closing_batches
from bench.peers.life import Life
from bench.peers.oracle import MEASURES, Difference, Key, Sums, compare, sums_of
from bench.peers.probes import PROBE_USER, Probes, topic_values
from bench.peers.results import Book, Results
from bench.peers.roster import Peer, Place
from bench.stage import child

_PROBE_SUMS: Final = dict(zip(MEASURES, (1, 2, 3, 4, 1), strict=True))
_SECOND_LIFE_SECONDS: Final = 12.0
_PATIENCE_SECONDS: Final = 120.0
_WINDOW_SECONDS: Final = 2.5


@dataclass(frozen=True)
class SteadyRun:
    """What was measured.

    Attributes:
        probe_count: how many were sent before the kill.
        latency_ms: of each whose result came before the kill, from its produce call until it could be read.
        recovery_seconds: from the kill until the result of a probe sent after it could be read.
        memory_mb: peak of all processes, of the first life.
        verdict: "right", or how all results of the run differ from the right answer.
    """

    probe_count: int
    latency_ms: list[float]
    recovery_seconds: float
    memory_mb: float
    verdict: str


@dataclass(frozen=True)
class SteadyLoad:
    """What is sent.

    Attributes:
        events_per_second: in keyed object messages.
        clients: distinct `<user, client-id>` pairs.
        warm_seconds: before the first probe.
        seconds: of probes before the kill.
    """

    events_per_second: int
    clients: int
    warm_seconds: float
    seconds: float


def steady(peer: Peer, place: Place, load: SteadyLoad) -> SteadyRun:
    """Run a peer under load, kill it, start it again, and compare every sum.

    Args:
        peer: which; it keeps its place over a kill.
        place: with topics that exist and are empty.
        load: that it gets.

    Raises:
        PeerFailed: it has ended, or gives no results after the kill.
        PeerMissing: it cannot run here.
    """
    peer.command(place)
    sender = [sys.executable, "-m", "bench.peers.load", place.bootstrap_servers, place.source]
    sender += [str(load.events_per_second), str(load.clients)]
    with peer.results(place) as results:
        book = Book(results)
        with child(sender):
            life = Life(peer, place)
            try:
                life.await_ready()
                _await_first(life, results)
                time.sleep(load.warm_seconds)
                with Probes(place.bootstrap_servers, place.source) as probes:
                    time.sleep(load.seconds)
                    memory_mb = life.peak_memory_mb
                    killed_ms = life.kill()
                    life = Life(peer, place)
                    time.sleep(_SECOND_LIFE_SECONDS)
                    _await_probe_after(killed_ms, life, book, probes.sent_ms)
            except BaseException:
                life.close()
                raise
        try:
            difference = _await_all(life, results, book, place)
        finally:
            life.close()
    at_ms = {key[2]: first_ms for key, first_ms in book.first_ms.items() if key[1] == PROBE_USER}
    before = [client for client, sent in probes.sent_ms.items() if sent < killed_ms]
    answered = [client for client in before if at_ms.get(client, killed_ms) < killed_ms]
    return SteadyRun(
        probe_count=len(before),
        latency_ms=[at_ms[client] - probes.sent_ms[client] for client in answered],
        recovery_seconds=(_first_after(killed_ms, book, probes.sent_ms) or float("inf")) / 1000,
        memory_mb=memory_mb,
        verdict=str(difference),
    )


def _await_first(life: Life, results: Results) -> None:
    """Wait for a result. Without one, a kill would find a peer that has no checkpoint yet."""
    before = results.progress()
    life.await_that(lambda: results.progress() != before, _PATIENCE_SECONDS, "its first result")


def _first_after(killed_ms: float, book: Book, sent_ms: Mapping[str, float]) -> float | None:
    """How long after the kill the first right result of a probe sent after it could be read, in ms."""
    wanted = tuple(_PROBE_SUMS.values())
    times = [
        book.first_ms[key] - killed_ms
        for key, sums in book.sums.items()
        if key[1] == PROBE_USER and sums == wanted and sent_ms.get(key[2], 0) > killed_ms
    ]
    return min(times, default=None)


def _await_probe_after(killed_ms: float, life: Life, book: Book, sent_ms: Mapping[str, float]) -> None:
    def is_there() -> bool:
        book.read()
        return _first_after(killed_ms, book, sent_ms) is not None

    life.await_that(is_there, _PATIENCE_SECONDS, "its first result after the kill")


def _await_all(life: Life, results: Results, book: Book, place: Place) -> Difference:
    """End the last windows of event time, and wait until all results are right, or stay wrong."""
    time.sleep(_WINDOW_SECONDS)
    connection = BrokerConnection(place.bootstrap_servers)
    for batch in closing_batches("object", time.time_ns() // 1_000_000):
        connection.produce(place.source, batch.partition, batch.shifted(0))
    expected = _without_closing(sums_of(topic_values(place.bootstrap_servers, place.source)))
    life.await_right(results, book, None, expected, _PATIENCE_SECONDS)
    return compare(expected, _without_closing(book.sums))


def _without_closing(sums: Mapping[Key, Sums]) -> dict[Key, Sums]:
    return {key: total for key, total in sums.items() if key[1] != CLOSING_USER}
