"""One life of a peer: from its start to its end or its kill."""

import io
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final

from bench.load import BrokerConnection
from bench.machine import CpuMeter, memory_of, process_name, tree
from bench.peers.messages import (
    CLOSING_USER,
    PROBE_MEASURES,
    PROBE_USER,
    Backlog,
    Difference,
    Key,
    Probes,
    Sums,
    closing_batches,
    compare,
    sums_of,
)
from bench.peers.results import Book, Results
from bench.peers.roster import Peer, PeerFailed, Place
from bench.stage import child
from pipeline.demo.process import kill, spawn, terminate
from tests.topic_reading import read_topic


@dataclass(frozen=True)
class Amounts:
    """How much of everything."""

    events: int  # of a backlog
    clients: int  # distinct `<user, client-id>` pairs
    rounds: int  # warm backlogs of each peer
    events_per_second: int  # of the steady load, in keyed object messages
    warm_seconds: float  # of the steady load before the first probe
    seconds: float  # of probes, before the kill
    native_seconds: float  # of each run against the broker's quotas
    hours: float  # simulated

    def __str__(self) -> str:
        return (
            f"Backlogs of {self.events:,} events of {self.clients:,} clients, median of {self.rounds} warm ones. "
            f"Steady load: {self.events_per_second:,} events a second, {self.seconds:g} s of probes. "
            f"Quotas of the broker: {self.native_seconds:g} s; {self.hours:g} h simulated."
        )


_QUIET_SECONDS: Final = 3.0
_REST_SECONDS: Final = 20.0
_START_SECONDS: Final = 120.0
_END_SECONDS: Final = 20.0
_LINES_SHOWN: Final = 25
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True)
class OfProcess:
    """What one process of a peer takes."""

    name: str
    memory_mb: float  # the most it has held; pages that processes share count in each of them
    cores: float


class Life:
    """A process of a peer and all below it; `ready_ms` is when it said that it reads, 0 before."""

    def __init__(self, peer: Peer, place: Place) -> None:
        self._ready_text = peer.ready.encode()
        self.name = peer.name
        self.log = deque[str](maxlen=_LINES_SHOWN)
        self.ready_ms = 0.0
        command = list(peer.command(place))
        environment = {**os.environ, **peer.environment(place)}
        self.spawned_ms = time.time() * 1000
        self._process = spawn(command, cwd=Path.cwd(), output=subprocess.PIPE, env=environment)
        Thread(target=self._listen, daemon=True).start()

    def await_ready(self) -> None:
        self.await_that(lambda: self.ready_ms > 0, _START_SECONDS, "it reads")

    def await_that(self, is_so: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition; `PeerFailed` if the peer has ended, or it takes too long."""
        deadline = time.monotonic() + seconds
        while not is_so():
            has_ended = self._process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                failure = f"{self.name} {'has ended before' if has_ended else 'took too long until'} {what}"
                raise PeerFailed("\n".join([f"{failure}; the end of its log:", *self.log]))
            time.sleep(_LOOK_SECONDS)

    def _await_quiet(self, results: Results, before: object, seconds: float) -> None:
        """Wait until there are new results, and then none for some seconds."""
        self.await_that(lambda: results.progress() != before, seconds, "its first new result")
        last, since = results.progress(), time.monotonic()

        def is_quiet() -> bool:
            nonlocal last, since
            if (now := results.progress()) != last:
                last, since = now, time.monotonic()
            return time.monotonic() - since > _QUIET_SECONDS

        self.await_that(is_quiet, seconds, "its results come to rest")

    def await_right(self, book: Book, before: object, expected: Mapping[Key, Sums], seconds: float) -> Difference:
        """Wait until all expected results are right, or stay wrong while nothing new comes."""
        results = book.results
        self._await_quiet(results, before, seconds)
        deadline = time.monotonic() + seconds
        while True:
            progress = results.progress()  # before the reading, else what comes meanwhile would be waited for
            book.read()
            difference = compare(expected, {key: book.sums[key] for key in expected if key in book.sums})
            rests_until = min(time.monotonic() + _REST_SECONDS, deadline)
            while results.progress() == progress and time.monotonic() < rests_until and not difference.is_right:
                time.sleep(_LOOK_SECONDS)
            if difference.is_right or results.progress() == progress:
                return difference
            self._await_quiet(results, progress, max(deadline - time.monotonic(), _REST_SECONDS))

    @contextmanager
    def paused(self) -> Iterator[None]:
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def cpu_meter(self) -> CpuMeter:
        """Of each of its processes of now, by the number."""
        return CpuMeter({str(pid): pid for pid in tree(self._process.pid)})

    def processes(self, meter: CpuMeter) -> list[OfProcess]:
        """What each of its processes takes; cores since the meter was asked last."""
        cores = meter.cores()
        return [
            OfProcess(process_name(pid), memory_of(pid).get("VmHWM", 0.0), cores.get(str(pid), 0.0))
            for pid in tree(self._process.pid)
        ]

    def kill(self) -> float:
        """Kill all its processes with SIGKILL. Returns the wall clock in ms, when nothing of them runs any more."""
        kill(self._process)
        return time.time() * 1000

    def close(self) -> None:
        terminate(self._process, _END_SECONDS)

    def _listen(self) -> None:
        with self._process.stdout or io.BytesIO() as stdout:
            for line in stdout:
                if not self.ready_ms and self._ready_text in line:
                    self.ready_ms = time.time() * 1000
                self.log.append(line.decode(errors="replace").rstrip())


_BACKLOG_SECONDS: Final = 240.0


@dataclass(frozen=True)
class CaughtUp:
    """What was measured in one life. The first rate is that of a cold process."""

    ready_seconds: float  # from the start of the process until it said that it reads
    first_result_seconds: float  # from the start of the process until the first result could be read
    rates: list[float]  # events per second of each backlog, from when the peer reads until its last result can be read
    memory_mb: float  # peak of all its processes
    verdict: str  # "right", or how the results differ from the right answer: then the other figures mean nothing


def catch_up(peer: Peer, place: Place, backlog: Backlog, rounds: int) -> CaughtUp:
    """Let a peer catch up with some backlogs, and compare every sum."""
    peer.command(place)  # makes what is missing, which is no part of a start
    backlog.send(place.bootstrap_servers, place.source, place.shape, 0)
    with closing(peer.results(place)) as results:
        book = Book(results)
        with closing(Life(peer, place)) as life:
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
                if not life.await_right(book, before, backlog.expected(copy), _BACKLOG_SECONDS).is_right:
                    break
            memory_mb = sum(one.memory_mb for one in life.processes(life.cpu_meter()))
    expected = {key: sums for copy in range(len(begins_ms)) for key, sums in backlog.expected(copy).items()}
    verdict = str(compare(expected, _without_closing(book.sums)))
    rates = [
        backlog.event_count / (_last_ms(book, backlog.expected(copy)) - begin_ms) * 1000
        for copy, begin_ms in enumerate(begins_ms)
    ]
    return CaughtUp(
        ready_seconds=(life.ready_ms - life.spawned_ms) / 1000,
        first_result_seconds=(min(book.first_ms.values(), default=life.spawned_ms) - life.spawned_ms) / 1000,
        rates=rates,
        memory_mb=memory_mb,
        verdict=verdict,
    )


def _last_ms(book: Book, expected: dict[Key, tuple[int, ...]]) -> float:
    return max((book.last_ms[key] for key in expected if key in book.last_ms), default=float("inf"))


_SECOND_LIFE_SECONDS: Final = 12.0
_PATIENCE_SECONDS: Final = 120.0
_WINDOW_SECONDS: Final = 2.5


@dataclass(frozen=True)
class SteadyRun:
    """What was measured."""

    probe_count: int  # how many were sent before the kill
    latency_ms: list[float]  # of each whose result came before the kill, from its produce call until it could be read
    recovery_seconds: float  # from the kill until the result of a probe sent after it could be read
    memory_mb: float  # peak of all processes, of the first life
    processes: list[OfProcess]  # of the first life; cores while probes were sent
    verdict: str  # "right", or how all results of the run differ from the right answer


def steady(peer: Peer, place: Place, amounts: Amounts) -> SteadyRun:
    """Run a peer under load, kill it, start it again, and compare every sum."""
    peer.command(place)
    sender = [sys.executable, "-m", "bench.peers.messages", place.bootstrap_servers, place.source]
    sender += [str(amounts.events_per_second), str(amounts.clients)]
    with closing(peer.results(place)) as results, ExitStack() as lives:
        book = Book(results)
        with child(sender):
            life = lives.enter_context(closing(Life(peer, place)))
            life.await_ready()
            before = results.progress()  # without a result, a kill would find a peer that has no checkpoint yet
            life.await_that(lambda: results.progress() != before, _PATIENCE_SECONDS, "its first result")
            time.sleep(amounts.warm_seconds)
            meter = life.cpu_meter()
            with Probes(place.bootstrap_servers, place.source) as probes:
                time.sleep(amounts.seconds)
                processes = life.processes(meter)
                killed_ms = life.kill()
                life = lives.enter_context(closing(Life(peer, place)))
                time.sleep(_SECOND_LIFE_SECONDS)
                _await_probe_after(killed_ms, life, book, probes.sent_ms)
        difference = _await_all(life, book, place)
    at_ms = {key[2]: first_ms for key, first_ms in book.first_ms.items() if key[1] == PROBE_USER}
    sent_before = [client for client, sent in probes.sent_ms.items() if sent < killed_ms]
    answered = [client for client in sent_before if at_ms.get(client, killed_ms) < killed_ms]
    return SteadyRun(
        probe_count=len(sent_before),
        latency_ms=[at_ms[client] - probes.sent_ms[client] for client in answered],
        recovery_seconds=(_first_after(killed_ms, book, probes.sent_ms) or float("inf")) / 1000,
        memory_mb=sum(one.memory_mb for one in processes),
        processes=processes,
        verdict=str(difference),
    )


def _first_after(killed_ms: float, book: Book, sent_ms: Mapping[str, float]) -> float | None:
    """How long after the kill the first right result of a probe sent after it could be read, in ms."""
    times = [
        book.first_ms[key] - killed_ms
        for key, sums in book.sums.items()
        if key[1] == PROBE_USER and sums == PROBE_MEASURES and sent_ms.get(key[2], 0) > killed_ms
    ]
    return min(times, default=None)


def _await_probe_after(killed_ms: float, life: Life, book: Book, sent_ms: Mapping[str, float]) -> None:
    def is_there() -> bool:
        book.read()
        return _first_after(killed_ms, book, sent_ms) is not None

    life.await_that(is_there, _PATIENCE_SECONDS, "its first result after the kill")


def _await_all(life: Life, book: Book, place: Place) -> Difference:
    """End the last windows of event time, and wait until all results are right, or stay wrong."""
    time.sleep(_WINDOW_SECONDS)
    connection = BrokerConnection(place.bootstrap_servers)
    for batch in closing_batches("object", time.time_ns() // 1_000_000):
        connection.produce(place.source, batch.partition, batch.shifted(0))
    sent = (record.value for record in read_topic(place.bootstrap_servers, place.source))
    expected = _without_closing(sums_of(sent))
    life.await_right(book, None, expected, _PATIENCE_SECONDS)
    return compare(expected, _without_closing(book.sums))


def _without_closing(sums: Mapping[Key, Sums]) -> dict[Key, Sums]:
    return {key: total for key, total in sums.items() if key[1] != CLOSING_USER}
