"""What can go wrong with a meter.

PipelineError
├── RequestLogMissing  there is no request log to follow
└── UsageNotStored     the meter ended with events that could not be stored
"""

from pathlib import Path

from pipeline.errors import PipelineError


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
