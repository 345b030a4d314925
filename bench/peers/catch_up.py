"""Catching up: a backlog that waits at the start, then backlogs that came while the peer stood still."""

import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bench.peers.backlog import CLOSING_USER, Backlog
from bench.peers.life import Life
from bench.peers.oracle import Key, compare
from bench.peers.results import Book
from bench.peers.roster import Peer, Place

_PATIENCE_SECONDS: Final = 240.0
_STEP: Final = re.compile(r"(\w+)_ms=(\d+)")
_ONE_STEP: Final = "collect_ms="


@dataclass(frozen=True)
class CaughtUp:
    """What was measured in one life.

    Attributes:
        events: of a backlog.
        ready_seconds: from the start of the process until it said that it reads.
        first_result_seconds: from the start of the process until the first result could be read.
        rates: events per second of each backlog, from the moment at which the peer reads until its last result could
            be read. The first one is that of a cold process.
        memory_mb: peak of all its processes.
        steps_ms: what the peer itself logged of its last backlog, such as `collect_ms=812`, added up by name.
        verdict: "right", or how the results differ from the right answer. Then the other figures mean nothing.
    """

    events: int
    ready_seconds: float
    first_result_seconds: float
    rates: list[float]
    memory_mb: float
    steps_ms: dict[str, int]
    verdict: str


def catch_up(peer: Peer, place: Place, backlog: Backlog, rounds: int) -> CaughtUp:
    """Let a peer catch up with some backlogs, and compare every sum.

    Args:
        peer: which.
        place: with topics that exist and are empty.
        backlog: is sent `rounds` + 1 times, each time later.
        rounds: of the warm process.

    Raises:
        PeerFailed: it has ended, or gives no results.
        PeerMissing: it cannot run here.
    """
    peer.command(place)  # makes what is missing, which is no part of a start
    backlog.send(place.bootstrap_servers, place.source, place.shape, 0)
    with peer.results(place) as results:
        book = Book(results)
        life = Life(peer, place)
        try:
            begins_ms = []
            for copy in range(rounds + 1):
                before = results.progress()
                if copy:
                    with life.paused():
                        backlog.send(place.bootstrap_servers, place.source, place.shape, copy)
                    begins_ms.append(time.time() * 1000)
                else:
                    life.await_ready()
                    begins_ms.append(life.ready_ms)
                if not life.await_right(results, book, before, backlog.expected(copy), _PATIENCE_SECONDS).is_right:
                    break
            memory_mb = life.peak_memory_mb
        finally:
            life.close()
    expected = {key: sums for copy in range(len(begins_ms)) for key, sums in backlog.expected(copy).items()}
    verdict = str(compare(expected, {key: sums for key, sums in book.sums.items() if key[1] != CLOSING_USER}))
    rates = [
        backlog.event_count / (_last_ms(book, backlog.expected(copy)) - begin_ms) * 1000
        for copy, begin_ms in enumerate(begins_ms)
    ]
    return CaughtUp(
        events=backlog.event_count,
        ready_seconds=(life.ready_ms - life.spawned_ms) / 1000,
        first_result_seconds=(min(book.first_ms.values(), default=life.spawned_ms) - life.spawned_ms) / 1000,
        rates=rates,
        memory_mb=memory_mb,
        steps_ms=_steps_ms(line for at_ms, line in life.log if at_ms >= begins_ms[-1]),
        verdict=verdict,
    )


def _steps_ms(lines: Iterable[str]) -> dict[str, int]:
    steps_ms: Counter[str] = Counter()
    for line in lines:
        steps_ms.update({name: int(value) for name, value in _STEP.findall(line)} if _ONE_STEP in line else {})
    return dict(steps_ms)


def _last_ms(book: Book, expected: dict[Key, tuple[int, ...]]) -> float:
    return max((book.last_ms[key] for key in expected if key in book.last_ms), default=float("inf"))
