"""Errors of the sync.

PipelineError
└── SyncIsRunning   another process keeps the brokers' quotas from the same tables
"""

from pathlib import Path

from pipeline.errors import PipelineError


class SyncIsRunning(PipelineError):
    """Another process holds the lock of the sync.

    Attributes:
        path: The lock file.
        holder: Its process id as text, "unknown" if it is not known.
    """

    exit_code = 4

    def __init__(self, path: Path, holder: str) -> None:
        self.path = path
        self.holder = holder
        super().__init__(
            f"the sync must be the only one of its tables; got a second one ({path} is held by process {holder})",
            f"stop the other one (kill {holder}), or start this one with another --tables",
        )
