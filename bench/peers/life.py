"""One life of a peer: from its start to its end or its kill."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

from bench.peers.oracle import Difference, Key, Sums, compare
from bench.peers.processes import peak_memory_mb, signal_all, tree
from bench.peers.results import Book, Results
from bench.peers.roster import Peer, Place
from pipeline.demo.process import spawn

_QUIET_SECONDS: Final = 3.0
_REST_SECONDS: Final = 20.0
_START_SECONDS: Final = 120.0
_END_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.05


class PeerFailed(Exception):
    """A peer has ended, or has given no results; the message has the end of its log."""


class Life:
    """A process of a peer and all below it.

    Args:
        peer: which.
        place: where; its command has prepared it.

    Attributes:
        log: its output: wall clock and line.
        spawned_ms: wall clock at its start.
        ready_ms: when it said that it reads; 0 before.
    """

    def __init__(self, peer: Peer, place: Place) -> None:
        self._ready_text = peer.ready.encode()
        self.name = peer.name
        self.log: list[tuple[float, str]] = []
        self.ready_ms = 0.0
        command = list(peer.command(place))
        environment = {**os.environ, **peer.environment(place)}
        self.spawned_ms = time.time() * 1000
        self._process = spawn(command, cwd=Path.cwd(), output=subprocess.PIPE, env=environment)
        Thread(target=self._listen, daemon=True).start()

    def await_ready(self) -> None:
        """Wait until it reads.

        Raises:
            PeerFailed: it has ended, or takes too long.
        """
        self.await_that(lambda: self.ready_ms > 0, _START_SECONDS, "it reads")

    def await_that(self, is_so: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition.

        Raises:
            PeerFailed: it has ended, or takes too long.
        """
        deadline = time.monotonic() + seconds
        while not is_so():
            if self._process.poll() is not None:
                raise self.failed("has ended before " + what)
            if time.monotonic() > deadline:
                raise self.failed("took too long until " + what)
            time.sleep(_LOOK_SECONDS)

    def await_quiet(self, results: Results, before: object, seconds: float) -> None:
        """Wait until there are new results, and then none for some seconds.

        Args:
            results: of the peer.
            before: their progress when there were none of the new ones.
            seconds: to wait at most.
        """
        self.await_that(lambda: results.progress() != before, seconds, "its first new result")
        last, since = results.progress(), time.monotonic()

        def is_quiet() -> bool:
            nonlocal last, since
            if (now := results.progress()) != last:
                last, since = now, time.monotonic()
            return time.monotonic() - since > _QUIET_SECONDS

        self.await_that(is_quiet, seconds, "its results come to rest")

    def await_right(
        self, results: Results, book: Book, before: object, expected: Mapping[Key, Sums], seconds: float
    ) -> Difference:
        """Wait until all expected results are right, or stay wrong while nothing new comes.

        Args:
            results: of the peer.
            book: takes them, whenever they have come to rest.
            before: progress of the results when there were none of the new ones.
            expected: the right answer.
            seconds: to wait at most.

        Raises:
            PeerFailed: it has ended, or gives no results at all.
        """
        self.await_quiet(results, before, seconds)
        deadline = time.monotonic() + seconds
        while True:
            book.read()
            difference = compare(expected, {key: book.sums[key] for key in expected if key in book.sums})
            progress = results.progress()
            rests_until = min(time.monotonic() + _REST_SECONDS, deadline)
            while results.progress() == progress and time.monotonic() < rests_until and not difference.is_right:
                time.sleep(_LOOK_SECONDS)
            if difference.is_right or results.progress() == progress:
                return difference
            self.await_quiet(results, progress, max(deadline - time.monotonic(), _REST_SECONDS))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still for the time of a block, as if it were away."""
        signal_all(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            signal_all(self._process.pid, signal.SIGCONT)

    @property
    def peak_memory_mb(self) -> float:
        """Of all its processes together."""
        return peak_memory_mb(self._process.pid)

    def kill(self) -> float:
        """Kill all its processes with SIGKILL. Returns the wall clock in ms."""
        at_ms = time.time() * 1000
        signal_all(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return at_ms

    def close(self) -> None:
        """Let it end, or kill it."""
        below = tree(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        for pid in below[1:]:  # those that have outlived it
            signal_all(pid, signal.SIGKILL)

    def failed(self, what: str) -> PeerFailed:
        """The error that tells what it has not done, with the end of its log."""
        return PeerFailed(
            "\n".join([f"{self.name} {what}; the end of its log:", *(line for _, line in self.log[-25:])])
        )

    def _listen(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            return
        with stdout:
            for line in stdout:
                if not self.ready_ms and self._ready_text in line:
                    self.ready_ms = time.time() * 1000
                self.log.append((time.time() * 1000, line.decode(errors="replace").rstrip()))
