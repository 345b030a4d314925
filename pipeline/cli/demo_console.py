"""What the demo prints: throttles and a summary on stdout, its state and commands to try on stderr."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pyarrow as pa

from pipeline.cli.output import remark, say
from pipeline.clock import SHOWN_DIGITS, clock_time, wall_ms
from pipeline.demo.folder import STOCK_CLIENTS, at_the_end, while_it_runs
from pipeline.job.metrics import Listeners
from pipeline.stream.micro_batch import BatchReport
from pipeline.throttle.explain import line_with_command
from schemas.throttle_record import BATCH_CAUSES

_STATUS_EVERY_SECONDS: Final = 5.0
_DO_NOT_LISTEN: Final = frozenset((client.user, client.client_id) for client in STOCK_CLIENTS)

Bounds = Mapping[tuple[str, str], float | None]
"""The quota of each client by (user, client_id), in bytes per second; None = it has none."""


class DemoConsole:
    """Prints the demo: throttles, commands to try, its state every five seconds, and a summary at the end.

    Of a client that does not listen only the first record is printed. Its broker keeps it at its quota, so kquota's own
    rate is just above and just below it by turns. The state is printed only if it is `watched`, at a terminal.
    """

    def __init__(self, candidate: Path, watched: bool) -> None:
        self._candidate = candidate
        self._watched = watched
        self._lock = Lock()
        self._clients: dict[tuple[str, str], dict[str, Any]] = {}
        self._longest_ms: dict[tuple[str, str], float] = {}
        self._records: Counter[tuple[str, str | None, str]] = Counter()
        self._hushed: set[tuple[str, str]] = set()
        self._decision_id: str | None = None
        self._batches = self._events = self._dead = 0
        self._last_report: BatchReport | None = None
        self._began: float | None = None
        self._status_due = 0.0

    def listeners(self) -> Listeners:
        """The functions that the job calls."""
        return Listeners(self._throttles_written, self._batch)

    def client_report(self, report: dict[str, Any]) -> None:
        """Keep the newest counters of one client; prints the state every five seconds."""
        with self._lock:
            client = report["user"], report["client_id"]
            self._clients[client] = report
            longest_ms = report.get("broker_throttle_max_ms", 0.0)
            self._longest_ms[client] = max(longest_ms, self._longest_ms.get(client, 0.0))
            now = time.monotonic()
            self._began = self._began or now
            if not self._watched or now < self._status_due:
                return
            self._status_due = now + _STATUS_EVERY_SECONDS
            remark(self._status())

    def summary(self, bounds: Bounds) -> None:
        """Print the totals of each client on stdout, if there are any, and commands to try next on stderr."""
        with self._lock:
            if self._clients:
                say("", *self._summary(bounds))
            _propose("to try next:", at_the_end(self._decision_id, self._batches, self._candidate))

    def _throttles_written(self, written: pa.Table, quota_version: int) -> None:
        for row in written.to_pylist():
            self._throttle(row, quota_version)

    def _throttle(self, row: dict[str, Any], quota_version: int) -> None:
        user, client_id = client = row["user"], row["client_id"]
        kind = "release" if row["action"] == "release" else row["cause"]
        with self._lock:
            self._records[user, client_id, kind] += 1
            if client in self._hushed:
                return
            is_first = self._decision_id is None
            self._decision_id = row["decision_id"][:SHOWN_DIGITS]
            stamp = clock_time(wall_ms())
            say(f"{stamp}  {line_with_command(row, quota_version)}")
            if is_first:
                _propose("to try meanwhile, in another terminal in this folder:", while_it_runs())
            if client in _DO_NOT_LISTEN:
                self._hushed.add(client)
                _note(f"{user}/{client_id} does not listen: its broker slows it. Its other records are not shown")

    def _batch(self, report: BatchReport) -> None:
        with self._lock:
            self._batches += 1
            self._events += report.facts.good_count
            self._dead += report.facts.dead_count
            self._last_report = report

    def _status(self) -> str:
        last = self._last_report
        state = "" if last is None else f" · batch {last.facts.evaluation.batch_id}, decisions {last.age_ms} ms old"
        elapsed = time.monotonic() - (self._began or time.monotonic())
        throttled = sum(report.get("blocked", False) for report in self._clients.values())
        clients = f"{throttled} of {len(self._clients)} clients throttled"
        return f"          {elapsed:4.0f} s · {self._events} usage events{state} · {clients}"

    def _summary(self, bounds: Bounds) -> list[str]:
        elapsed = max(time.monotonic() - (self._began or time.monotonic()), 1e-9)
        lines = [
            f"{elapsed:.0f} s of load, {self._batches} micro-batches, {self._events} usage events, "
            f"{self._dead} dead letters",
            f"{'client':<20} {'role':<8} {'kB/s':>7} {'quota':>7} {'throttled':>9} {'renewed':>7} {'released':>8}  "
            "slowed by",
        ]
        for (user, client_id), report in sorted(self._clients.items(), key=lambda item: -self._throttles(*item[0])):
            bound = bounds.get((user, client_id))
            lines.append(
                f"{user + '/' + client_id:<20} {report['role']:<8} {report['sent_bytes'] / elapsed / 1000:>7.1f} "
                f"{'none' if bound is None else f'{bound / 1000:.1f}':>7} {self._throttles(user, client_id):>9} "
                f"{self._count(user, client_id, 'renewed', 'quota_changed'):>7} "
                f"{self._count(user, client_id, 'release'):>8}  "
                f"{_slowed_by(report, self._longest_ms[user, client_id])}"
            )
        return lines

    def _throttles(self, user: str, client_id: str) -> int:
        return self._count(user, client_id, *BATCH_CAUSES)

    def _count(self, user: str, client_id: str, *kinds: str) -> int:
        """The records of a client and of its user: no user of the demo has a client that is excepted."""
        return sum(self._records[user, held, kind] for held in (client_id, None) for kind in kinds)


def _slowed_by(report: Mapping[str, Any], longest_ms: float) -> str:
    """What made a client wait, by its own counters: throttles that it obeyed, its broker, both, or nothing."""
    found = []
    if report.get("held_ms", 0):
        found.append(f"listening: {report['held_ms'] / 1000:.0f} s")
    if longest_ms:
        found.append(f"the broker: {report['broker_throttle_mean_ms']:.0f} ms a request, at most {longest_ms:.0f}")
    return ", ".join(found) or "nothing"


def _propose(when: str, commands: Sequence[str]) -> None:
    _note(when, *(f"  {command}" for command in commands))


def _note(*lines: str) -> None:
    remark(*(f"          {line}" for line in lines))
