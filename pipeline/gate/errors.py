"""What can go wrong at the gate.

PipelineError
├── GateDepleted        the gate's memory pool has nothing left for another throttled request
├── GateTimeout         a throttle lasted longer than the caller wanted to wait
├── RequestSizeRefused  a request of a size that the gate never lets in
└── GateExtraMissing    the side-car's libraries are not installed
"""

from pipeline.command_line import extra_text
from pipeline.errors import PipelineError


class GateDepleted(PipelineError):
    """The waiting requests of throttled clients use up the gate's memory pool. Other clients still pass.

    Attributes:
        request_bytes: Size of the request that was refused.
        available_bytes: What is left of the pool, at or below 0.
        pool_bytes: Size of the pool.
    """

    exit_code = 5

    def __init__(self, request_bytes: int, available_bytes: int, pool_bytes: int) -> None:
        self.request_bytes = request_bytes
        self.available_bytes = available_bytes
        self.pool_bytes = pool_bytes
        super().__init__(
            f"'request_bytes' must find space in the gate's pool of {pool_bytes} bytes; got {request_bytes} with "
            f"{available_bytes} left",
            "answer the client that it is throttled, or give the gate a larger pool_bytes or when_full='wait'",
        )


class GateTimeout(PipelineError, TimeoutError):
    """A caller still had to wait after its time-out.

    Attributes:
        user: Who is throttled.
        client_id: With which client-id.
        timeout_ms: How long the caller waited.
        remaining_ms: How much longer the throttle lasts, as known now; 0 when the caller waited only for memory.
    """

    def __init__(self, user: str, client_id: str, timeout_ms: int, remaining_ms: int) -> None:
        self.user = user
        self.client_id = client_id
        self.timeout_ms = timeout_ms
        self.remaining_ms = remaining_ms
        super().__init__(
            f"the throttle of {user}/{client_id} must end within {timeout_ms} ms; got {remaining_ms} ms more",
            f"come back in {-(-remaining_ms // 1000)} s, or wait longer",
        )


class RequestSizeRefused(PipelineError, ValueError):
    """A request of a size that the gate never lets in, however much memory is free.

    Attributes:
        request_bytes: What was given.
        max_request_bytes: The largest size allowed.
    """

    exit_code = 5

    def __init__(self, request_bytes: int, max_request_bytes: int) -> None:
        self.request_bytes = request_bytes
        self.max_request_bytes = max_request_bytes
        super().__init__(
            f"'request_bytes' must be from 0 to {max_request_bytes}; got {request_bytes}",
            "split the request, or give the gate a larger max_request_bytes",
        )


class GateExtraMissing(PipelineError):
    """The side-car's libraries are not installed.

    Attributes:
        library: The first one that is missing.
    """

    def __init__(self, library: str) -> None:
        self.library = library
        super().__init__(
            f"'kquota gate' must have starlette and uvicorn; got no {library}",
            extra_text("gate"),
        )
