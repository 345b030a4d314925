"""What can go wrong with metrics.

PipelineError
└── MetricsPortBusy     the endpoint can not listen on its address
"""

from pipeline.errors import PipelineError


class MetricsPortBusy(PipelineError):
    """The system does not let the endpoint listen on its address.

    Attributes:
        host: A name or an address.
        port: The port.
    """

    def __init__(self, host: str, port: int, reason: str) -> None:
        self.host = host
        self.port = port
        super().__init__(
            f"'metrics.port' must be free at {host}; got {port}: {reason}",
            "give each program a port of its own, with --metrics-port; 0 means any free one",
        )
