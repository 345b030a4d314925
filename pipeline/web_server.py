"""An application on a socket by uvicorn: what the gate's side-car and the dashboard share."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn


def bound_socket(host: str, port: int, backlog: int) -> socket.socket:
    """A listening socket on the first address that the host has.

    Args:
        host: A name or an address.
        port: 0 means any free one.
        backlog: How many connections may wait to be taken.

    Raises:
        OSError: The system does not let this process listen there.
    """
    family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server((host, port), family=family, backlog=backlog)


def web_server(app: Any, lifespan: Literal["on", "off"], finish_seconds: int) -> uvicorn.Server:
    """A server that logs no request and leaves the signals alone: `should_exit = True` ends it.

    Args:
        app: The ASGI application.
        lifespan: Whether it is told of start and end.
        finish_seconds: How long requests may take to finish at the end.
    """
    return _Server(
        uvicorn.Config(
            app,
            lifespan=lifespan,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=finish_seconds,
        )
    )


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: the command line handles them, as for every other command."""
        yield
