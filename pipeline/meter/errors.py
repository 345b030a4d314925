"""What can go wrong with a meter.

PipelineError
├── RequestLogMissing     there is no request log to follow
├── MeterStateDamaged     the state file can not be used
├── MeterStateNotWritten  the state file can not be written, for example because the disk is full
└── UsageNotStored        the meter ended with events that could not be stored
"""

import errno
import shlex
from pathlib import Path
from typing import Final

from pipeline.errors import PipelineError

_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class RequestLogMissing(PipelineError):
    """The folder of the request log is not there, or the log cannot be read.

    Attributes:
        path: The log asked for.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(
            f"request log {path} {reason}",
            "name the file that logger kafka.request.logger of the broker writes at DEBUG",
        )


class MeterStateDamaged(PipelineError):
    """The state file is not one that a meter has written, so the place in the log is not known.

    Attributes:
        path: The state file.
        reason: What is wrong with it.
    """

    exit_code = 5

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"'--state-file' must name a state that a meter has written; got {path}: {reason}",
            f"rm {shlex.quote(str(path))}, then start with --from-beginning, which reports the whole log again, or "
            "without, which leaves out what was logged until now",
        )


class MeterStateNotWritten(PipelineError):
    """The state file can not be written.

    Attributes:
        path: The state file.
        is_disk_full: No space, or no quota, is left on its disk.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        self.path = path
        self.is_disk_full = error.errno in _DISK_FULL
        folder = shlex.quote(str(path.parent))
        reason = "a full disk" if self.is_disk_full else error.strerror or type(error).__name__
        super().__init__(
            f"'--state-file' must be writable; got {path}: {reason}",
            f"free some space: df -h {folder}" if self.is_disk_full else f"see who may write there: ls -ld {folder}",
        )


class UsageNotStored(PipelineError):
    """The meter ended with events that could not be stored.

    Attributes:
        topic: Where they were to go.
        bootstrap_servers: The cluster.
        unsent_bytes: How much is left.
    """

    exit_code = 6

    def __init__(self, topic: str, bootstrap_servers: str, unsent_bytes: int) -> None:
        self.topic = topic
        self.bootstrap_servers = bootstrap_servers
        self.unsent_bytes = unsent_bytes
        super().__init__(
            f"{unsent_bytes:,} bytes of usage events could not be stored on {topic} at {bootstrap_servers}",
            "start the meter again with the same state file: it goes on at the first of them",
        )
