"""What benchmarks work with: topics, tables, and child processes that must not share the measuring interpreter.

Child processes are the load, the job, and others.
"""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import MappingProxyType

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.demo.process import terminate
from pipeline.settings.model import Settings
from pipeline.tables.from_settings import create_tables


def create_topics_and_tables(settings: Settings, bootstrap_servers: str) -> None:
    """Create the topics and tables of a job, those that are missing."""
    with ClusterAccess(bootstrap_servers).admin() as admin:
        create_topics(admin, wanted_topics(settings))
    create_tables(settings.tables)


@contextmanager
def child(command: Sequence[str], stderr: int = subprocess.DEVNULL) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a group of its own. It ends when the block ends."""
    started = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
    )
    try:
        yield started
    finally:
        terminate(started, 20)


@contextmanager
def job(
    folder: Path,
    bootstrap_servers: str,
    trigger_ms: int,
    heard: Callable[[str], None],
    tables: str | None = None,
    checkpoint: str | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """`kquota run` with tables, checkpoint and lock under a folder. The block begins when the job is running.

    The block has its process.

    Args:
        folder: where the job keeps everything.
        bootstrap_servers: of the broker.
        trigger_ms: of the query.
        heard: called with every line of the job's log, from its start; once the job is running on a thread.
        tables: root of its tables, if it is not under the folder.
        checkpoint: likewise.
    """
    command = [sys.executable, "-m", "pipeline.cli.main", "run", "--bootstrap-server", bootstrap_servers]
    command += ["--tables", tables or str(folder / "tables")]
    command += ["--checkpoint", checkpoint or str(folder / "checkpoint")]
    command += ["--trigger-ms", str(trigger_ms), "--run-dir", str(folder)]
    with child(command, subprocess.PIPE) as running:
        stderr = running.stderr or io.BytesIO()
        told: list[bytes] = []
        for line in stderr:
            told.append(line)
            heard(line.decode())
            if b"running; trigger" in line:
                break
        else:
            sys.exit(f"the job must start; it ended with\n{b''.join(told[-20:]).decode()}")

        def read() -> None:
            for line in stderr:
                heard(line.decode())

        Thread(target=read, daemon=True).start()
        yield running


@contextmanager
def dashboard(
    tables: str, *options: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[str, int]]:
    """`kquota dashboard` on a free port; the block has the page's address and its process id.

    Args:
        tables: root of the tables.
        options: further ones of the command.
        environment: further variables.
    """
    command = [sys.executable, "-m", "pipeline.cli.main", "dashboard", "--port", "0", "--tables", tables, *options]
    started = subprocess.Popen(
        command, stderr=subprocess.PIPE, env={**os.environ, **environment}, start_new_session=True
    )
    try:
        told = started.stderr.readline().decode() if started.stderr else ""
        if not told.startswith("dashboard: http"):
            sys.exit(f"the dashboard must start; got {told}")
        yield told.split()[1], started.pid
    finally:
        terminate(started, 20)
