"""Named places at which a process can be made to die, for the fault tests.

Off unless the environment has `KQUOTA_FAILPOINT=name[:nth][:raise]`. The nth time that a thread reaches the place (the
first time without a number), the process kills itself and its process group as `kill -9` does. With `:raise` it raises
`FailpointReached` there instead.
"""

import os
import signal
from collections.abc import Mapping
from threading import Lock
from typing import Final, NoReturn

from pipeline.errors import PipelineError, UsageError

VARIABLE: Final = "KQUOTA_FAILPOINT"
FAILPOINTS: Final[Mapping[str, str]] = {
    "start.epochs_raised": "every table has the new epoch, nothing is read yet",
    "start.rebuilt": "rates and debts are rebuilt, an earlier publisher is not fenced yet",
    "start.fenced": "an earlier publisher is fenced and the marker read, outstanding rows are not published",
    "sensor_state.appended": "a snapshot of the buckets is stored, the batch has not begun",
    "batch.pinned": "the quota version of a batch is pinned, nothing of it is read",
    "batch.collected": "usage is summed, nothing of the batch is stored",
    "dead_letters.appended": "dead letters of a batch are stored, its usage is not",
    "usage.appended": "usage and facts of a batch are stored, nothing of its decisions is",
    "batch.decided": "a batch is decided, its decisions are not stored",
    "decisions.appended": "decisions of the batches of a second are stored, their rows of `batches` are not",
    "batches.appended": "decisions and rows of these batches are stored, Spark may not have committed the last one",
    "outbox.appended": "a batch's records are in the outbox, not on the topic yet; its decisions may be stored or not",
    "transaction.sent": "records and marker are sent, the transaction is open",
    "transaction.committed": "the transaction is committed, the driver has not noted it yet",
    "batch.published": "a batch is done, Spark has not committed it",
    "check.decided": "checks have decided renewals and releases, nothing is in the outbox yet",
    "check.appended": "records of checks are in the outbox, not on the topic yet",
}


class FailpointReached(PipelineError):
    """Raised by a failpoint that shall not kill the process."""

    def __init__(self, name: str) -> None:
        super().__init__(f"failpoint {name} was reached", f"unset {VARIABLE}, it is for tests only")


class Failpoint:
    """An armed failpoint; `UsageError` if its name is unknown or the rest is malformed."""

    def __init__(self, text: str) -> None:
        self.name, *rest = text.split(":")
        self._raises = rest[-1:] == ["raise"]
        nth = "".join(rest[:-1] if self._raises else rest) or "1"
        if self.name not in FAILPOINTS or not nth.isdecimal() or len(rest) > 1 + self._raises:
            message = f"{VARIABLE}={text!r} is not name[:nth][:raise] with a name of {', '.join(FAILPOINTS)}"
            raise UsageError(message, f"unset {VARIABLE}, it is for tests only")
        self._left = int(nth)
        self._lock = Lock()

    def hit(self) -> None:
        """Count that a thread has reached the place; at the nth time kill the process or raise."""
        with self._lock:
            self._left -= 1
            if self._left:
                return
        if self._raises:
            raise FailpointReached(self.name)
        _die()


def failpoint(name: str) -> None:
    """Mark a place in the code. Does nothing unless the environment names this place."""
    if _armed is not None and _armed.name == name:
        _armed.hit()


def _die() -> NoReturn:
    # The whole group, Java included, if it is our own; never a group that we share with the program that started us.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


_armed = Failpoint(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
