"""A job under test with its load, and the judge of both. Generator and job are processes of their own."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

from kafka import KafkaConsumer, TopicPartition

from pipeline.demo.broker import BrokerOptions
from pipeline.failpoints import VARIABLE
from pipeline.settings.model import Settings
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable, TenantTable
from pipeline.tables.quotas.tenants import TenantChange
from schemas.throttle_record import Target
from tests.faults.evidence import gather
from tests.faults.generator import RATES
from tests.faults.stepped_clock import ClockHistory, SteppedClock
from tests.faults.verdict import Rules, Verdict
from tests.faults.verifier import verify
from tests.integration.running_job import RunningJob
from tests.waiting import wait_until


def rules_of(settings: Settings) -> Rules:
    """The rules for a job on real clocks, whose lead grows with the publish lag that it measures."""
    purgatory = settings.purgatory
    return Rules(
        min_hold_ms=purgatory.min_hold_ms,
        least_lead_ms=max(settings.stream.trigger_ms + purgatory.client_lag_ms, purgatory.min_renew_lead_ms),
        max_decision_age_ms=settings.stream.max_decision_age_ms,
        sensor_state_interval_ms=settings.stream.sensor_state_interval_ms,
        clock_tolerance_ms=settings.stream.clock_tolerance_ms,
    )


SETTINGS = {
    "KQUOTA_ENGINE__NUM_SAMPLES": "4",
    "KQUOTA_ENGINE__SAMPLE_WINDOW_MS": "500",
    "KQUOTA_STREAM__SENSOR_STATE_INTERVAL_MS": "1000",
    "KQUOTA_PURGATORY__CLIENT_LAG_MS": "100",
    "KQUOTA_TABLES__USAGE_RETENTION_MS": "86400000",
}
"""Short windows: debts are paid within seconds, and many throttles fit into one round.

The verifier reads everything, also when the clock is set by hours: so nothing is deleted on the way.
"""
BROKER = BrokerOptions(settings={"log.cleaner.enable": "false", "log.retention.check.interval.ms": "86400000"})
"""The verifier reads the throttle topic from its first record, also when the clock is an hour ahead."""
_DAY_SECONDS = 86_400
_LONGEST_AHEAD_SECONDS = 7_200
"""No clock is set ahead so far; a run is shorter than a day without it."""
AUDIT = EditAudit("faults", "localhost", "0", "fault test")
_TEAM = ("offender-0", "offender-1", "offender-2")
_EDIT_SECONDS = 3.0


def edit_team(tenants: TenantTable, draw: random.Random) -> None:
    """Give the tenant of three offenders other terms, or delete it.

    Its bound is half of what one of them has by its quota, up to twice that: so it binds.
    """
    if draw.random() < 0.2:
        delete_team(tenants)
        return
    values: dict[str, Any] = {name: rate * draw.choice((0.5, 1.0, 2.0)) for name, rate in RATES.items()}
    values["lend"], values["ceiling"] = draw.choice(((False, None), (True, None), (True, None), (True, 1.5)))
    values["mode"] = "enforce" if draw.random() < 0.8 else "shadow"
    tenants.alter([TenantChange("team", values, {"user_patterns": _TEAM})], AUDIT)


def delete_team(tenants: TenantTable) -> None:
    tenants.commit(lambda _: [], AUDIT)


@dataclass
class Rig:
    """A job, its load and its judge.

    Attributes:
        aws_environment: With which the verifier reads tables in a store: it knows nothing of kquota's settings.
        clock: The wall clock of job, broker and generators; None = the machine's.
    """

    job: RunningJob
    generators: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    aws_environment: Mapping[str, str] = field(default_factory=dict)
    clock: SteppedClock | None = None
    _lives: list[tuple[int, int]] = field(default_factory=list)

    def set_quotas(self, factor: float = 1.0, user: str = "<default>") -> None:
        table = QuotaTable(self.job.settings.tables.root)
        values = {name: rate * factor for name, rate in RATES.items()}
        table.alter([QuotaChange(user=user, client_id="", values=values)], AUDIT)

    @contextmanager
    def team_edited(self, seed: int) -> Iterator[None]:
        """Edit the team at once and every three seconds until the end of the block; then there is none."""
        draw, is_over = random.Random(seed), Event()
        edit_team(TenantTable(self.tables), draw)

        def edit() -> None:
            while not is_over.wait(_EDIT_SECONDS):
                edit_team(TenantTable(self.tables), draw)

        with ThreadPoolExecutor(1) as pool:
            edits = pool.submit(edit)
            try:
                yield
            finally:
                is_over.set()
        edits.result()
        delete_team(TenantTable(self.tables))

    @property
    def tables(self) -> str:
        return self.job.settings.tables.root

    def begin_load(self, seed: int, *options: str) -> "subprocess.Popen[bytes]":
        """Start a generator, which runs until `end_load`."""
        command = [sys.executable, "-m", "tests.faults.generator", "--topic", self.job.usage_topic]
        command += ["--bootstrap-server", self.job.bootstrap_servers, "--seed", str(seed), *options]
        self.generators.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return self.generators[-1]

    def end_load(self, only: "subprocess.Popen[bytes] | None" = None) -> None:
        """Tell one generator to end, or all: then it returns when the broker has what they have sent."""
        for process in [only] if only else self.generators:
            assert process.stdin is not None
            if not process.stdin.closed:
                assert process.poll() is None, "the generator has died"
                process.stdin.close()
        for process in () if only else self.generators:
            process.wait(90)

    def start(self, failpoint: str | None = None, wait: bool = True) -> float:
        """Start the job. Returns the seconds until its first micro-batch was done; 0 without waiting."""
        self.job.overrides.pop(VARIABLE, None)
        if failpoint is not None:
            self.job.overrides[VARIABLE] = failpoint
        began, since = time.monotonic(), len(self.job.log)
        self._lives.append((time.time_ns() // 1_000_000, since))
        self.job.start(wait=False)
        if not wait:
            return 0.0
        self.job.wait_for_line("batch_id=", since)
        return time.monotonic() - began

    def step_clock(self, seconds: int) -> None:
        """Set the clock forward, or back if negative; does nothing on the machine's. Waits for a job that starts."""
        if self.clock is None or not seconds:
            return
        process, since = self.job.process, self._lives[-1][1] if self._lives else 0

        def is_started() -> bool:
            has_ended = process is None or process.poll() is not None
            return has_ended or any("running; trigger" in line for line in self.job.log[since:])

        wait_until(is_started, "the job to run, or to end")
        self.clock.step(seconds)

    def await_death(self) -> int:
        assert self.job.process is not None
        try:
            return self.job.process.wait(180)
        except subprocess.TimeoutExpired as exc:
            raise AssertionError("\n".join(["the job did not end:", *self.job.log[-40:]])) from exc

    def is_drained(self) -> bool:
        """True if every message is in a batch that is done, and every throttle has ended.

        The job must have told its newest batch: with slow commits, its records come a second after its row.
        """
        rows = self.job.table("batches", ["processed_at_ms", "batch_id", "end_offsets"]).to_pylist()
        ends: dict[int, int] = {}
        for row in sorted(rows, key=self._collected_ms):
            of_topic = json.loads(row["end_offsets"])[self.job.usage_topic]
            ends |= {int(partition): offset for partition, offset in of_topic.items() if offset}
            told = f"batch_id={row['batch_id']} "
        is_read = ends == self._ends() and (not rows or any(told in line for line in self.job.log[::-1]))
        return is_read and not self._held()

    def drain(self) -> None:
        self.job.wait_until(self.is_drained, "every message to be in a batch and every throttle to end")

    def verdict(self, at_least: Mapping[str, int]) -> Verdict:
        """What the verifier says; it must have compared at least so much, by the names of its checks."""
        with patch.dict(os.environ, self.aws_environment):
            topics = self.job.usage_topic, f"{self.job.name}.throttle"
            evidence = gather(self.tables, self.job.bootstrap_servers, *topics)
        evidence.starts = list(starts_in(self.job.log, time.time() + (_LONGEST_AHEAD_SECONDS if self.clock else 0)))
        if self._clock_history is not None:
            evidence = self._clock_history.tell(evidence)
        return verify(evidence, rules_of(self.job.settings), at_least)

    def close(self) -> None:
        for process in self.generators:
            process.kill()
            process.communicate()
        self.job.close()

    @property
    def _clock_history(self) -> ClockHistory | None:
        return None if self.clock is None else ClockHistory(self.clock.steps, [at_ms for at_ms, _ in self._lives])

    def _collected_ms(self, batch: Mapping[str, Any]) -> int:
        """When a batch was collected, by a clock that was never set."""
        history, reading_ms = self._clock_history, int(batch["processed_at_ms"])
        return reading_ms if history is None else reading_ms - history.moved_ms(reading_ms)

    def _ends(self) -> dict[int, int]:
        topic = self.job.usage_topic
        consumer: Any = KafkaConsumer(bootstrap_servers=self.job.bootstrap_servers)
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        ends = consumer.end_offsets(partitions)
        consumer.close()
        return {partition.partition: end for partition, end in ends.items() if end}

    def _held(self) -> set[Target]:
        names = ("publish_seq", "broker_id", "user", "client_id", "quota_type", "action")
        rows = self.job.table("throttle_events", list(names)).to_pylist()
        last = {Target.of(row): row["action"] for row in sorted(rows, key=lambda row: row["publish_seq"])}
        return {client for client, action in last.items() if action == "throttle"}


def logged_ms(line: str, now_seconds: float) -> int:
    """When a line of the last 24 hours was logged, epoch milliseconds: it has the time of the day only."""
    hours, minutes, seconds = line.partition(" ")[0].split(":")
    of_day = int(hours) * 3_600 + int(minutes) * 60 + float(seconds)
    return round((now_seconds - (now_seconds - of_day) % _DAY_SECONDS) * 1_000)


def starts_in(log: Iterable[str], now_seconds: float) -> Iterator[int]:
    """When the job took over at each start, epoch milliseconds, by the lines of its log.

    That is when it took up running throttles; where there were none, the end of the recovery.
    """
    has_taken_up = False
    for line in log:
        text = line.partition(" ")[2]
        is_recovered = " tables and recovery " in text
        if " took up " in text or (is_recovered and not has_taken_up):
            yield logged_ms(line, now_seconds)
        has_taken_up = " took up " in text or (has_taken_up and not is_recovered)


@contextmanager
def rig(name: str, folder: Path, bootstrap_servers: str, **overrides: str) -> Iterator[Rig]:
    """A job with topics, tables and quotas of its own, not started yet. Everything is ended when the block ends."""
    job = RunningJob(name, folder, bootstrap_servers, {**SETTINGS, **overrides})
    job.create_topics()
    made = Rig(job)
    create_missing(made.tables)
    made.set_quotas()
    try:
        yield made
    finally:
        made.close()
