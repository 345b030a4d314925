"""What can go wrong at the gate.

PipelineError
├── GateDepleted        the gate's memory pool has nothing left for another throttled request
├── GateTimeout         a throttle lasted longer than the caller wanted to wait
├── RequestSizeRefused  a request of a size that the gate never lets in
└── of the side-car: ListenAddressInvalid, ListenUnguarded, ListenBusy, GateTokenInvalid, GateExtraMissing
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


class ListenAddressInvalid(PipelineError):
    """`--listen` is not an address.

    Attributes:
        given: What was given.
    """

    exit_code = 2

    def __init__(self, given: str) -> None:
        self.given = given
        super().__init__(f"'--listen' must be HOST:PORT; got {given!r}", "give one, as 127.0.0.1:8787 or [::1]:8787")


class ListenUnguarded(PipelineError):
    """Other machines could reach the side-car, and it has no token.

    Attributes:
        host: The address it was asked to listen on.
    """

    exit_code = 2

    def __init__(self, host: str) -> None:
        self.host = host
        super().__init__(
            f"'--listen' must be a loopback address without a token; got {host}",
            "listen on 127.0.0.1, or give --token-file or KQUOTA_GATE_TOKEN",
        )


class ListenBusy(PipelineError):
    """The side-car can not listen on the address.

    Attributes:
        host: The address.
        port: Its port.
        reason: What the operating system says.
    """

    exit_code = 4

    def __init__(self, host: str, port: int, reason: str) -> None:
        self.host = host
        self.port = port
        self.reason = reason
        super().__init__(
            f"'--listen' must be free and of this machine; got {host}:{port}: {reason}",
            "choose another port, or 0 for any free one",
        )


class GateTokenInvalid(PipelineError):
    """The side-car's token can not be used. The token itself is never part of the message.

    Attributes:
        source: Where it comes from: a file or an environment variable.
    """

    exit_code = 2

    def __init__(self, source: str, got: str) -> None:
        self.source = source
        super().__init__(
            f"the token of '{source}' must be visible ASCII characters; got {got}",
            "write one line, as of `openssl rand -hex 32`",
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
