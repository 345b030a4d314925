"""`kquota run` as a process of its own, with functions for what tests need to know about it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.cluster.topics import create_topics, wanted_topics
from pipeline.process import kill, spawn, terminate
from pipeline.settings.model import Settings, load_settings
from pipeline.tables.layout import create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.queries import read_table
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS, wait_until


@dataclass
class RunningJob:
    """A job with topics, tables, checkpoint and name of its own, on a shared broker."""

    name: str
    folder: Path
    bootstrap_servers: str
    overrides: dict[str, str] = field(default_factory=dict)
    program: Sequence[str] = (sys.executable, "-m", "pipeline.cli.main")
    log: list[str] = field(default_factory=list)
    process: "subprocess.Popen[bytes] | None" = None
    _log_reader: Thread | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            "KQUOTA_JOB": self.name,
            "KQUOTA_CLUSTER": "test",
            "KQUOTA_RUN_DIR": str(self.folder),
            "KQUOTA_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "KQUOTA_KAFKA__USAGE_TOPIC": f"{self.name}.usage",
            "KQUOTA_KAFKA__THROTTLE_TOPIC": f"{self.name}.throttle",
            "KQUOTA_KAFKA__MARKER_TOPIC": f"{self.name}.marker",
            "KQUOTA_TABLES__ROOT": str(self.folder / "tables"),
            "KQUOTA_STREAM__CHECKPOINT": str(self.folder / "checkpoint"),
            "KQUOTA_STREAM__TRIGGER_MS": "200",
            # On a busy machine a slow batch must not count as too old to be published.
            "KQUOTA_STREAM__MAX_DECISION_AGE_MS": "60000",
            **self.overrides,
        }

    @property
    def usage_topic(self) -> str:
        """The topic that it reads: its own, or another job's if the settings say so."""
        return self.environment["KQUOTA_KAFKA__USAGE_TOPIC"]

    @property
    def settings(self) -> Settings:
        with patch.dict(os.environ, self.environment):
            return load_settings()

    def create_topics(self) -> None:
        admin: Any = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        create_topics(admin, wanted_topics(self.settings))
        admin.close()

    def start(self, *flags: str, wait: bool = True) -> None:
        """Start the process. Returns when the job is running."""
        since = len(self.log)
        self.process = spawn(
            [*self.program, "run", *flags],
            cwd=Path.cwd(),
            output=subprocess.PIPE,
            env={**os.environ, **self.environment},
        )
        self._log_reader = Thread(target=self._read_log, args=(self.process,), daemon=True)
        self._log_reader.start()
        if wait:
            self.wait_for_line("running; trigger", since)

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "pipeline.cli.main", *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def stop(self) -> int:
        """Send SIGTERM. Returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL to the job and its JVM."""
        assert self.process is not None
        kill(self.process)

    def close(self) -> None:
        if self.process is not None:
            terminate(self.process, 20)

    def wait_for_line(self, text: str, since: int = 0) -> str:
        """Wait for the first log line that contains a text. Fails when the process has ended."""
        found: list[str] = []

        def is_there() -> bool:
            has_ended = self._has_ended()
            found.extend(line for line in self.log[since:] if text in line)
            return bool(found) or has_ended

        self._wait_until(is_there, f"a log line with {text!r}")
        assert found, self._told(f"the job has ended without a log line with {text!r}")
        return found[0]

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until a condition is true, while the process runs."""
        self._wait_until(lambda: is_so() or self._has_ended(), what)
        assert is_so(), self._told(f"the job has ended before {what}")

    def send(self, *messages: bytes | dict[str, Any] | list[Any] | None) -> None:
        """Produce to the usage topic. Mappings and lists are sent as JSON."""
        producer: Any = KafkaProducer(bootstrap_servers=self.bootstrap_servers)
        for message in messages:
            value = message if message is None or isinstance(message, bytes) else json.dumps(message).encode()
            producer.send(f"{self.name}.usage", value, key=b"key")
        producer.flush()
        producer.close()

    def records(self) -> list[dict[str, Any]]:
        """All records that are committed on the throttle topic now."""
        read = read_topic(self.bootstrap_servers, f"{self.name}.throttle")
        found: list[dict[str, Any]] = [json.loads(record.value) for record in read]
        return sorted(found, key=lambda record: int(record["publish_seq"]))

    def wait_for_record(self, **wanted: Any) -> dict[str, Any]:
        """Wait for a committed record with these fields. Returns the newest one."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            found.extend(
                record
                for record in self.records()[::-1]
                if all(record[name] == value for name, value in wanted.items())
            )
            return bool(found)

        self._wait_until(is_there, f"a throttle record with {wanted}")
        return found[0]

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        return read_table(table_uri(self.settings.tables.root, name), columns)

    def _wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            wait_until(is_so, what)
        except AssertionError as late:
            raise AssertionError(self._told(str(late))) from late

    def _has_ended(self) -> bool:
        """True if the process has ended and all its output is in the log."""
        if self.process is None or self._log_reader is None:
            return False
        return self.process.poll() is not None and not self._log_reader.is_alive()

    def _told(self, what: str) -> str:
        return "\n".join([f"{what}; the log's end:", *self.log[-40:]])

    def _read_log(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.log.append(line.decode(errors="replace").rstrip())


@contextmanager
def running_job(name: str, folder: Path, bootstrap_servers: str) -> Iterator[RunningJob]:
    """A job with its topics, not started yet. It is ended when the block ends, also if the test fails."""
    job = RunningJob(name, folder, bootstrap_servers)
    job.create_topics()
    create_missing(str(folder / "tables"))
    try:
        yield job
    finally:
        job.close()


def usage(user: str, produced_bytes: int, **overrides: Any) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    return {"event_time_ms": now_ms, "user": user, "client_id": "c", "produced_bytes": produced_bytes, **overrides}
