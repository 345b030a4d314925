"""Errors of the Spark side.

PipelineError
└── stream
    ├── SparkConnectRefused  the session would live on a server, out of reach of the driver's state
    └── QueryFailed          Spark ended the streaming query
"""

from pipeline.errors import PipelineError


class SparkConnectRefused(PipelineError):
    """The session is, or would become, a Spark Connect session.

    Attributes:
        found_in: what asked for it.
    """

    exit_code = 2

    def __init__(self, found_in: str) -> None:
        self.found_in = found_in
        super().__init__(
            f"'spark' must be a classic session, with the purgatory in its driver; got Spark Connect from {found_in}",
            "unset it, and name a master (local[*], spark://…) or use spark-submit",
        )


class QueryFailed(PipelineError):
    """Spark ended the streaming query; what it had not committed is repeated by the next one."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the streaming query must run until it is stopped; got: {reason}",
            "see the log above for the cause; a restart continues where it ended",
        )
