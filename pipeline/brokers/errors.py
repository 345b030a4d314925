"""What can go wrong with the quotas of brokers, beside what `pipeline.cluster.errors` has.

PipelineError
└── NativeQuotasUnsupported   the brokers are older than the requests for quotas
"""

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
