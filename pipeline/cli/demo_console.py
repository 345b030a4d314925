"""What the demo prints: throttles and its totals on stdout, its state and commands to try on stderr."""

import time
import weakref
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pyarrow as pa

from pipeline.cli.output import remark, say
from pipeline.clock import SHOWN_DIGITS, clock_time, wall_ms
from pipeline.demo.folder import STOCK_CLIENTS, at_the_end, while_it_runs
from pipeline.job.metrics import Listeners, RunGauges
from pipeline.stream.micro_batch import BatchReport
from pipeline.tables.rates import members_of
from pipeline.throttle.shapes import line_with_command
from quota.effective import lending_text
from quota.tenants import Tenant

_STATUS_EVERY_SECONDS: Final = 5.0
_OF_TENANT: Final = ("tenant", "quota_type", "broker_id")
_DO_NOT_LISTEN: Final = frozenset((client.user, client.client_id) for client in STOCK_CLIENTS)


class DemoConsole:
    """Prints the demo: throttles, commands to try, its state every five seconds, and its totals at the end.

    Of a client that does not listen only the first record is printed. Its broker keeps it at its quota, so kquota's own
    rate is just above and just below it by turns. That a tenant lends is printed once. The state is printed only if it
    is `watched`, at a terminal.
    """

    def __init__(self, candidate: Path, watched: bool) -> None:
        self._candidate = candidate
        self._watched = watched
        self._lock = Lock()
        self._hushed: set[tuple[str, str]] = set()
        self._decision_id: str | None = None
        self._batches = self._events = self._dead = self._records = 0
        self._status_due = 0.0
        self._gauges: weakref.ref[RunGauges] | None = None
        self._has_lent = False

    def listeners(self) -> Listeners:
        """The functions that the job calls."""
        return Listeners(self._throttles_written, self._batch, began=self._began)

    def summary(self) -> None:
        """Print the totals on stdout, and commands to try next on stderr."""
        with self._lock:
            say("", f"{self._totals()}, {self._dead} dead letters, {self._records} throttle records")
            _propose("to try next:", at_the_end(self._decision_id, self._batches, self._candidate))

    def _throttles_written(self, written: pa.Table, quota_version: int) -> None:
        for row in written.to_pylist():
            self._throttle(row, quota_version)

    def _throttle(self, row: dict[str, Any], quota_version: int) -> None:
        user, client_id = client = row["user"], row["client_id"]
        with self._lock:
            self._records += 1
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
            self._show_lending()
            now = time.monotonic()
            if self._watched and now >= self._status_due:
                self._status_due = now + _STATUS_EVERY_SECONDS
                _note(f"{self._totals()} · decisions {report.age_ms} ms old · {report.held} throttles in force")

    def _began(self, gauges: RunGauges) -> None:
        self._gauges = weakref.ref(gauges)

    def _show_lending(self) -> None:
        gauges = None if self._gauges is None else self._gauges()
        text = None if gauges is None or self._has_lent else lending_in(gauges.rates.rows, gauges.quotas.pin().tenants)
        if text is not None:
            self._has_lent = True
            say(f"{clock_time(wall_ms())}  {text}")

    def _totals(self) -> str:
        return f"{self._batches} micro-batches, {self._events} usage events"


def lending_in(rates: pa.Table, tenants: Sequence[Tenant]) -> str | None:
    """A sentence about a tenant that lends, by rows of the table `rates`; None if none does."""
    lending = [one for one in tenants if one.lend]
    members: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in members_of(rates, lending).to_pylist() if lending else ():
        members[tuple(row[name] for name in _OF_TENANT)].append(row)
    texts = (lending_text(tenant, quota_type, found) for (tenant, quota_type, _), found in members.items())
    return next(filter(None, texts), None)


def _propose(when: str, commands: Sequence[str]) -> None:
    _note(when, *(f"  {command}" for command in commands))


def _note(*lines: str) -> None:
    remark(*(f"          {line}" for line in lines))
