"""`kquota quotas sync` as a process of its own."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from tests.waiting import PATIENCE_SECONDS, wait_until


class SyncProcess:
    """One that runs; its log is kept."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def wait_for(self, text: str) -> None:
        """Wait until it has logged a text."""
        wait_until(lambda: text in self.log or self._process.poll() is not None, f"{text!r} in {self.log}")
        assert text in self.log

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def stop(self) -> int:
        """Ask it to stop; returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.await_end()

    def await_end(self) -> int:
        """Wait until it has ended by itself; returns the exit code."""
        return self._process.wait(PATIENCE_SECONDS)


@contextmanager
def running_sync(*flags: str) -> Iterator[SyncProcess]:
    """Start it; it is killed with the block, if it still runs."""
    command = [sys.executable, "-m", "pipeline.cli.main", "quotas", "sync", *flags]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield SyncProcess(process, log)
        finally:
            process.kill()
