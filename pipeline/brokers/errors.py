"""What can go wrong with the quotas of brokers, beside what `pipeline.cluster.errors` has.

PipelineError
└── NativeQuotasUnsupported   the brokers are older than the requests for quotas
"""

from pathlib import Path

from pipeline.errors import PipelineError


class NativeQuotasUnsupported(PipelineError):
    """The brokers do not know a request for client quotas.

    Attributes:
        bootstrap_servers: The cluster.
        request: The request, by its name and the number of its API.
    """

    exit_code = 6

    def __init__(self, bootstrap_servers: str, request: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.request = request
        super().__init__(
            f"the Kafka brokers at {bootstrap_servers} do not know the request {request}",
            "update them: Kafka has it since 2.6",
        )


# Errors of the sync.
#
# PipelineError
# └── SyncIsRunning   another process keeps the brokers' quotas from the same tables


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
