"""HTTP for the gate, the dashboard and the metrics: addresses, tokens, queries, and one server.

It needs uvicorn alone, so that a program without the extras can serve its metrics. It loads no client of Kafka. A
registry of metrics is made once and passed on: nothing is registered where others could meet it.

Bounds, so that clients which send half a request or take no answer stop nothing and fill nothing:

* Connections: at most half of the descriptors that the process may open. At the limit the connection goes
  that has owed the rest of its request for longest; while all are being answered, the newcomer gets 503.
* Headers are complete `REQUEST_SECONDS` after the connection or the last answer, and so is the body after the headers.
* An answer that the client does not take for `STALL_SECONDS` ends with the connection.

A request that is complete has no deadline here: long polls and event streams last as long as their handlers do.
"""

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import resource
import socket
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import Any, Final, Literal, NamedTuple, TypeVar

import h11
import uvicorn
from prometheus_client import CollectorRegistry, Info, ProcessCollector, disable_created_metrics, make_asgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ValidationError
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeline.errors import PipelineError
from pipeline.settings.model import MetricsSettings

REQUEST_SECONDS: Final = 10.0
STALL_SECONDS: Final = 60.0
_BACKLOG: Final = 64
_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_PROBES: Final = ("/healthz", "/readyz")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=BaseModel)


class ListenRefused(PipelineError):
    """The program does not listen: no such address, taken, open to other machines without a token, or a bad token."""

    exit_code = 2


class QueryRefused(PipelineError):
    """A request has parameters that cannot be answered. It names all mistakes at once."""

    exit_code = 2

    def __init__(self, mistakes: Sequence[str], fix: str) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(mistakes), fix)


class Listen(NamedTuple):
    """Where to listen; port 0 means any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Only this machine can connect. Every host name except localhost counts as reachable from outside."""
        return _is_this_machine(self.host)


def parse_listen(text: str) -> Listen:
    """Read HOST:PORT. An IPv6 address stands in brackets.

    Raises:
        ListenRefused: The text is something else.
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host, has_colon = (host[1:-1], False) if is_bracketed else (host, ":" in host)
    is_port = port.isascii() and port.isdecimal() and int(port[:6]) < 65_536
    if has_colon or not (host and colon and is_port):
        msg = f"'--listen' is not HOST:PORT: {text!r}"
        raise ListenRefused(msg, "give one, as 127.0.0.1:8787 or [::1]:8787")
    return Listen(host, int(port))


def read_token(token_file: Path | None, variable: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The bearer token: the first line of the file, else the environment variable, else None.

    Raises:
        ListenRefused: The file cannot be read, or no header can carry the token, which the message does not have.
    """
    source, why = (variable, "") if token_file is None else (str(token_file), "")
    if token_file is None:
        if variable not in environ:
            return None
        token = environ[variable]
    else:
        try:
            token = token_file.read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as exc:
            token, why = "", f"cannot be read: {type(exc).__name__}"
    if not token:
        why = why or "is empty"
    elif not (token.isascii() and token.isprintable() and " " not in token):
        why = "has other characters than visible ASCII"
    if why:
        msg = f"the token of {source!r} {why}"
        raise ListenRefused(msg, "write one line, as of `openssl rand -hex 32`")
    return token


def refuse_unguarded(listen: Listen, token: str | None, variable: str) -> None:
    """Raise `ListenRefused` for an address that other machines reach, if requests need no token."""
    if token is None and not listen.is_loopback:
        msg = f"other machines can reach {listen.host}, and there is no token"
        raise ListenRefused(msg, f"listen on 127.0.0.1, or give --token-file or {variable}")


def read_parameters(
    parameters: Sequence[tuple[str, str]], model: type[_Model], fix: str, known: Collection[str]
) -> _Model:
    """Read the parameters of a request, strictly: with one ignored, the answer would be about another thing.

    Args:
        parameters: Percent-decoded, in the order given.
        model: Its validators read the texts.
        known: The names that this request takes.

    Raises:
        QueryRefused: A parameter is unknown, repeated, missing or out of range.
    """
    mistakes: list[str] = []
    given: dict[str, str] = {}
    for name, text in parameters:
        if name not in known:
            mistakes.append(f"unknown parameter '{name[:40]}'; use {', '.join(known)}")
        elif name in given:
            mistakes.append(f"'{name}' is given twice")
        else:
            given[name] = text
    try:
        read = model.model_validate(given)
    except ValidationError as exc:
        for one in sorted(exc.errors(), key=lambda one: one["type"] == "missing"):
            cause = one.get("ctx", {}).get("error")
            mistakes.append(f"'{one['loc'][0]}' is missing" if cause is None else str(cause))
        raise QueryRefused(mistakes, fix) from exc
    if mistakes:
        raise QueryRefused(mistakes, fix)
    return read


def whole_number(name: str, lowest: int, highest: int) -> Callable[[object], int]:
    """Reads a whole number from lowest to highest, in ASCII digits."""

    def read(value: object) -> int:
        text = str(value)
        if not (text.isascii() and text.isdecimal() and len(text) < 16 and lowest <= int(text) <= highest):
            msg = f"'{name}' is not a whole number from {lowest} to {highest}: {text[:40]!r}"
            raise ValueError(msg)
        return int(text)

    return read


class Guard:
    """Refuses what must not be answered, before the application sees it.

    With a token, requests must carry it as `Authorization: Bearer …`. Without one only names of this machine are
    answered: a web page elsewhere could have its own name lead here (DNS rebinding), and read what is answered. Probes
    of health need neither.

    Args:
        any_host: Whether other names are answered without a token, too.
        is_open: Whether a path needs no token.
    """

    def __init__(
        self,
        app: App,
        token: str | None = None,
        *,
        any_host: bool = False,
        is_open: Callable[[str], bool] = lambda _: False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._app = app
        self._token = token
        self._any_host = any_host
        self._is_open = is_open
        self._headers = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Have a request answered, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        given = dict(scope["headers"])
        refusal = self._refusal(scope["path"], given)
        if refusal is None:
            await self._app(scope, receive, guarded)
            return
        status, error, fix = refusal
        body = json.dumps({"error": error, "fix": fix}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
        await guarded({"type": "http.response.start", "status": status, "headers": headers})
        await guarded({"type": "http.response.body", "body": body})

    def _refusal(self, path: str, headers: Mapping[bytes, bytes]) -> tuple[int, str, str] | None:
        if path in _PROBES:
            return None
        if self._token is None:
            host = headers.get(b"host", b"").decode("latin-1")
            if self._any_host or _is_this_machine(_without_port(host)):
                return None
            return 421, f"host {host[:80]} is not a name of this machine", "send the request to 127.0.0.1"
        given = headers.get(b"authorization", b"")
        if is_bearer(given, self._token) or self._is_open(path):
            return None
        return 401, "invalid token" if given else "no token", "send Authorization: Bearer <token>"


def is_bearer(authorization: bytes, token: str) -> bool:
    """Whether the header `Authorization` carries a token. It takes as long for every other one of this length."""
    return hmac.compare_digest(authorization, f"Bearer {token}".encode())


def _without_port(host: str) -> str:
    return host[: host.rfind("]") + 1].strip("[]") if host.startswith("[") else host.partition(":")[0]


def _is_this_machine(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


async def while_wanted(work: Coroutine[Any, Any, _T], *ends: Coroutine[Any, Any, None]) -> _T | None:
    """Do the work until one of the ends comes, such as `until_gone`; that cancels the work, and gives None."""
    working, ending = asyncio.ensure_future(work), [asyncio.ensure_future(end) for end in ends]
    try:
        await asyncio.wait((working, *ending), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, *ending):
            task.cancel()
        await asyncio.gather(working, *ending, return_exceptions=True)


async def until_gone(receive: Receive) -> None:
    """Return when the client of a request has gone away. The request's body is passed over."""
    while (await receive())["type"] != "http.disconnect":
        pass


class WebServer:
    """An application on a socket.

    Args:
        finish_seconds: How long requests may take to finish at the end.
        most_connections: Further bounded by the descriptors that the process may open.

    Raises:
        ListenRefused: The system does not let it listen there.
    """

    def __init__(
        self,
        app: App,
        listen: Listen,
        *,
        lifespan: Literal["on", "off"] = "off",
        finish_seconds: int = 1,
        most_connections: int = 4_096,
    ) -> None:
        self._host = listen.host
        self._socket = _bound(listen)
        limits = _Limits(connection_limit(most_connections), {})
        config = uvicorn.Config(
            app,
            http=partial(_Connection, limits),  # type: ignore[arg-type]
            ws="none",
            lifespan=lifespan,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=finish_seconds,
        )
        self._server = _Server(config)

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """As http://HOST:PORT/."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}/"

    def run(self) -> None:
        """Answer requests until `stop`."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Make `run` return. From any thread or signal handler; may be repeated, and come before `run`."""
        self._server.should_exit = True


def connection_limit(most: int) -> int:
    """At most so many connections, and at most half of the descriptors that this process may open.

    The rest is for files, and for the connections that are taken at once before the first of them is closed.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if descriptors == resource.RLIM_INFINITY else min(most, descriptors // 2)


def _bound(listen: Listen) -> socket.socket:
    try:
        family, *_ = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((listen.host, listen.port), family=family, backlog=_BACKLOG)
    except OSError as exc:
        msg = f"cannot listen on {listen.host}:{listen.port}: {exc.strerror or exc}"
        raise ListenRefused(msg, "choose another port; 0 means any free one", exit_code=4) from exc


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: the command line handles them, as for every other command."""
        yield


class _Limits(NamedTuple):
    """The limits of one server. `owing` has the connections whose clients owe something, oldest first."""

    connections: int
    owing: dict["_Connection", None]


class _Connection(H11Protocol):
    """One connection with its deadlines; see the module."""

    def __init__(self, limits: _Limits, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._owed: object = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            oldest = next(iter(self._limits.owing), None)
            if oldest is None:
                transport.write(_BUSY)
                transport.close()
            else:
                oldest._cut()
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._settle()
        self._unstall()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_SECONDS, self._cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unstall()

    def _look(self) -> None:
        """What does the client owe now: headers, a body, or to take its last answer? Each has a deadline of its own."""
        state, cycle = self.conn.their_state, self.cycle
        is_being_answered = bool(cycle) and not cycle.response_complete
        owed = None if is_being_answered and state is not h11.SEND_BODY else (state, cycle)
        if owed != self._owed:
            self._settle()
            self._owed = owed
            if owed is not None:
                self._limits.owing[self] = None
                self._deadline = self.loop.call_later(REQUEST_SECONDS, self._cut)

    def _settle(self) -> None:
        self._limits.owing.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def _unstall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()

    def _cut(self) -> None:
        self._settle()
        self.transport.abort()


def new_registry(program: str) -> CollectorRegistry:
    """A registry with what all programs have: version, memory, processor time and open files."""
    # When each counter began would be a second series for each one.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Info("kquota_build", "Which program this is, and its version.", registry=registry)
    build.info({"program": program, "version": version("kafka-quota-pipeline")})
    return registry


class ReadAtScrape(Collector):
    """Metrics whose values are read at each scrape, on the endpoint's threads: `read` must not change anything."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """The values of now."""
        return self._read()


# The endpoint.

log = logging.getLogger(__name__)

_MOST_SCRAPES: Final = 32


@contextmanager
def metrics_endpoint(settings: MetricsSettings, registry: CollectorRegistry) -> Iterator[int | None]:
    """Answer GET /metrics while the block runs, on a thread of its own; gives the port in use.

    Without a port in the settings nothing listens, and it gives None. Requests need no token; on a loopback address
    only names of this machine are answered.

    Raises:
        ListenRefused: The system does not let it listen there.
    """
    if settings.port is None:
        yield None
        return
    listen = Listen(settings.host, settings.port)
    app = Guard(make_asgi_app(registry), any_host=not listen.is_loopback)
    try:
        server = WebServer(app, listen, most_connections=_MOST_SCRAPES)
    except ListenRefused as exc:
        exc.fix = "give each program a port of its own, with --metrics-port; 0 means any free one"
        raise
    log.info("metrics at %smetrics", server.address)
    thread = Thread(target=server.run, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        server.stop()
        thread.join()
