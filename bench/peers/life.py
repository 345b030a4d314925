"""One life of a peer: from its start to its end or its kill; catching up, and the steady load."""

import io
import os
import signal
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final

from bench.machine import CpuMeter, memory_mb, tree
from bench.peers.messages import Backlog, Key, Sums, difference, events_in, sums_of
from bench.peers.results import Results
from bench.peers.roster import Peer, PeerFailed, Place
from pipeline.process import kill, spawn, terminate
from tests.topic_reading import read_topic

_QUIET_SECONDS: Final = 3.0
_REST_SECONDS: Final = 20.0
_PATIENCE_SECONDS: Final = 240.0
_END_SECONDS: Final = 20.0
_LINES_SHOWN: Final = 25
_LOOK_SECONDS: Final = 0.05


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
        self.await_that(lambda: self.ready_ms > 0, "it reads")

    def await_that(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for a condition; `PeerFailed` if the peer has ended, or it takes too long."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not is_so():
            has_ended = self._process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                failure = f"{self.name} {'has ended before' if has_ended else 'took too long until'} {what}"
                raise PeerFailed("\n".join([f"{failure}; the end of its log:", *self.log]))
            time.sleep(_LOOK_SECONDS)

    def await_right(self, results: Results, before: object, expected: Mapping[Key, Sums]) -> str:
        """Wait until all expected results are right (""), or stay wrong while nothing new comes (the difference)."""
        self.await_that(lambda: results.progress() != before, "its first new result")
        while True:
            progress = self._at_rest(results)
            results.read()
            wrong = difference(expected, {key: results.sums[key] for key in expected if key in results.sums})
            deadline = time.monotonic() + _REST_SECONDS
            while wrong and results.progress() == progress and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            if not wrong or results.progress() == progress:
                return wrong

    def _at_rest(self, results: Results) -> object:
        """Wait until no new result has come for some seconds."""
        last, since = results.progress(), time.monotonic()
        deadline = since + _PATIENCE_SECONDS
        while time.monotonic() - since < _QUIET_SECONDS and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            if (now := results.progress()) != last:
                last, since = now, time.monotonic()
        return last

    @contextmanager
    def paused(self) -> Iterator[None]:
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def cpu_meter(self) -> CpuMeter:
        return CpuMeter(tree(self._process.pid))

    def memory_mb(self) -> float:
        return memory_mb(self._process.pid)

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


@dataclass(frozen=True)
class CaughtUp:
    """What was measured in one life. Rates: events per second, from when it reads until its last result can be read."""

    ready_seconds: float  # from the start of the process until it said that it reads
    first_result_seconds: float  # from the start of the process until the first result could be read
    cold: float  # the rate of the first backlog
    warm: float  # the median of the other ones
    memory_mb: float  # peak of all its processes
    wrong: str  # how the results differ from the right answer: then the other figures mean nothing


def catch_up(peer: Peer, place: Place, backlog: Backlog, rounds: int) -> CaughtUp:
    """Let a peer catch up with some backlogs, and compare every sum."""
    peer.command(place)  # makes what is missing, which is no part of a start
    backlog.send(place.servers, place.source, place.shape, 0)
    with closing(peer.results(place)) as results, closing(Life(peer, place)) as life:
        rates, wrong = [], ""
        for copy in range(rounds + 1):
            before, expected = results.progress(), backlog.expected(copy)
            if copy:
                with life.paused():
                    backlog.send(place.servers, place.source, place.shape, copy)
                begin_ms = time.time() * 1000
            else:
                life.await_ready()
                begin_ms = life.ready_ms
            wrong = life.await_right(results, before, expected)
            if wrong:
                break
            rates.append(backlog.event_count / (max(results.last_ms[key] for key in expected) - begin_ms) * 1000)
        memory_mb = life.memory_mb()
        everything = {key: sums for copy in range(rounds + 1) for key, sums in backlog.expected(copy).items()}
        wrong = wrong or difference(everything, results.sums)
    return CaughtUp(
        ready_seconds=(life.ready_ms - life.spawned_ms) / 1000,
        first_result_seconds=(min(results.first_ms.values(), default=life.spawned_ms) - life.spawned_ms) / 1000,
        cold=rates[0] if rates else 0.0,
        warm=statistics.median(rates[1:]) if rates[1:] else 0.0,
        memory_mb=memory_mb,
        wrong=wrong,
    )


_SECOND_LIFE_SECONDS: Final = 12.0


@dataclass(frozen=True)
class Steady:
    """What was measured under the steady load. It counts when the first event of a client in a second is answered."""

    asked: int  # how many there were while it was measured
    latency_ms: list[float]  # of each that was answered before the kill, from its produce call
    recovery_seconds: float  # from the kill until one of after the kill was answered
    memory_mb: float  # peak of all processes, of the first life
    cores: float  # of all processes, in the first life
    wrong: str  # how all results of the run differ from the right answer


def steady(peer: Peer, place: Place, load: tuple[int, int], warm_seconds: float, seconds: float) -> Steady:
    """Run a peer under a load (events a second, clients), kill it, start it again, and compare every sum."""
    peer.command(place)
    with closing(peer.results(place)) as results, ExitStack() as lives:
        with place.stage.load(*load):
            life = lives.enter_context(closing(Life(peer, place)))
            life.await_ready()
            before = results.progress()  # without a result, a kill would find a peer that has no checkpoint yet
            life.await_that(lambda: results.progress() != before, "its first result")
            time.sleep(warm_seconds)
            begin_ms, meter = time.time() * 1000, life.cpu_meter()
            time.sleep(seconds)
            end_ms, cores, memory_mb = time.time() * 1000, meter.cores(), life.memory_mb()
            results.read()  # the log of a table is kept for three minutes
            killed_ms = life.kill()
            life = lives.enter_context(closing(Life(peer, place)))
            time.sleep(_SECOND_LIFE_SECONDS)  # to read the results would slow it down
            life.await_that(lambda: _back_ms(results, killed_ms) < float("inf"), "its first result after the kill")
        sent = [record.value for record in read_topic(place.servers, place.source)]
        expected, first_ms = sums_of(sent), dict[Key, int]()
        for key, time_ms, _ in events_in(sent):
            first_ms[key] = min(time_ms, first_ms.get(key, time_ms))
        life.await_right(results, None, expected)
    asked = {key: at_ms for key, at_ms in first_ms.items() if begin_ms <= at_ms < end_ms}
    answered = ((results.first_ms.get(key, killed_ms), at_ms) for key, at_ms in asked.items())
    return Steady(
        asked=len(asked),
        latency_ms=[answer_ms - at_ms for answer_ms, at_ms in answered if answer_ms < killed_ms],
        recovery_seconds=_back_ms(results, killed_ms) / 1000,
        memory_mb=memory_mb,
        cores=cores,
        wrong=difference(expected, results.sums),
    )


def _back_ms(results: Results, killed_ms: float) -> float:
    """How long after the kill the first result of a second after it could be read; infinite if there is none yet."""
    results.read()
    times = (at_ms - killed_ms for key, at_ms in results.first_ms.items() if key[0] >= killed_ms)
    return min(times, default=float("inf"))
