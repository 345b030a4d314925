"""What the job and the demo print while they run.

The job logs every throttle and every micro-batch on stderr. The demo prints throttles on stdout, its state on
stderr.
"""

import logging
import sys
import time
from collections import Counter
from threading import Lock
from typing import Any, Final

from pipeline.job.job import Listeners
from pipeline.stream.micro_batch import BatchReport
from pipeline.throttle.log_line import clock_time, line_with_command
from pipeline.throttle.outbox import Written

log = logging.getLogger("pipeline.job")

_STATUS_EVERY_SECONDS: Final = 5.0


def log_throttle(record: Written, quota_version: int) -> None:
    """Write one log line for a published record."""
    log.info(line_with_command(record, quota_version))


def log_batch(report: BatchReport) -> None:
    """Write one log line for a micro-batch, as key=value facts."""
    log.info(status_line(report))


def status_line(report: BatchReport) -> str:
    """The facts of a micro-batch. `age_ms` is the age of its newest event at the time its records became readable."""
    facts = report.facts
    return (
        f"batch_id={facts.evaluation.batch_id} events={facts.good_count} late={facts.late_count} "
        f"clamped={facts.clamped_count} ignored={facts.ignored_count} dead_letters={facts.dead_count} "
        f"violations={report.violations} published={report.published} held={report.held} "
        f"collect_ms={report.collect_ms} append_ms={report.append_ms} "
        f"decide_ms={report.decide_ms} publish_ms={report.publish_ms} "
        f"age_ms={report.age_ms} quotas=v{facts.evaluation.quota_version}"
    )


class DemoConsole:
    """Prints the demo: every throttle, the state every five seconds, and a summary of all clients at the end."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._clients: dict[tuple[str, str], dict[str, Any]] = {}
        self._records: Counter[tuple[str, str, str]] = Counter()
        self._batches = self._events = self._dead = 0
        self._last_report: BatchReport | None = None
        self._began: float | None = None
        self._status_due = 0.0

    def listeners(self) -> Listeners:
        """The functions that the job calls."""
        return Listeners(self._throttle, self._batch)

    def client_report(self, report: dict[str, Any]) -> None:
        """Keep the newest counters of one client; prints the state every five seconds."""
        with self._lock:
            self._began = self._began or time.monotonic()
            self._clients[report["user"], report["client_id"]] = report
            now = time.monotonic()
            if now < self._status_due:
                return
            self._status_due = now + _STATUS_EVERY_SECONDS
            sys.stderr.write(self._status())

    def summary(self) -> None:
        """Print the totals of each client on stdout."""
        with self._lock:
            sys.stdout.write("".join(f"{line}\n" for line in ("", *self._summary())))
            sys.stdout.flush()

    def _throttle(self, record: Written, quota_version: int) -> None:
        key = record.publication.key
        kind = "release" if record.publication.action == "release" else record.publication.cause
        with self._lock:
            self._records[key.user, key.client_id, kind] += 1
            stamp = clock_time(time.time_ns() // 1_000_000)
            sys.stdout.write(f"{stamp}  {line_with_command(record, quota_version)}\n")
            sys.stdout.flush()

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
        throttled = sum(report["blocked"] for report in self._clients.values())
        clients = f"{throttled} of {len(self._clients)} clients throttled"
        return f"          {elapsed:4.0f} s · {self._events} usage events{state} · {clients}\n"

    def _summary(self) -> list[str]:
        elapsed = max(time.monotonic() - (self._began or time.monotonic()), 1e-9)
        lines = [
            f"{elapsed:.0f} s of load, {self._batches} micro-batches, {self._events} usage events, "
            f"{self._dead} dead letters",
            f"{'client':<22} {'role':<8} {'kB/s':>8} {'throttled':>9} {'renewed':>8} {'released':>8}",
        ]
        for (user, client_id), report in sorted(self._clients.items(), key=lambda item: -self._throttles(*item[0])):
            lines.append(
                f"{user + '/' + client_id:<22} {report['role']:<8} {report['sent_bytes'] / elapsed / 1000:>8.1f} "
                f"{self._records[user, client_id, 'violation']:>9} {self._renewals(user, client_id):>8} "
                f"{self._records[user, client_id, 'release']:>8}"
            )
        return lines

    def _throttles(self, user: str, client_id: str) -> int:
        return self._records[user, client_id, "violation"]

    def _renewals(self, user: str, client_id: str) -> int:
        return self._records[user, client_id, "renewed"] + self._records[user, client_id, "quota_changed"]
