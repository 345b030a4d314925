"""HTTP for the gate, the dashboard and the metrics: addresses, tokens, queries, and one server.

It loads no client of Kafka. A registry of metrics is made once and passed on: nothing is registered where others could
meet it.

A connection is closed if no whole headers have come for `REQUEST_SECONDS`, counted from its start or from the last
answer, and at once if so many others are open that the process could run out of descriptors. A request that is complete
has no deadline here: long polls and event streams last as long as their handlers do.
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
from importlib.metadata import version
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

from hypercorn.asyncio import serve
from hypercorn.config import Config, Sockets
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.documents import json_text
from pipeline.errors import PipelineError
from pipeline.settings.model import MetricsSettings

REQUEST_SECONDS: Final = 10.0
MOST_CONNECTIONS: Final = 4_096
_BACKLOG: Final = 64
_STOP_LOOK_SECONDS: Final = 0.1
_STATUS: Final = {1: 500, 2: 400, 3: 404, 4: 409, 5: 422, 6: 503}
"""HTTP status by the exit code of an error."""
_NOT_KEPT: Final = {"Cache-Control": "no-store"}
_PROBES: Final = ("/healthz", "/readyz")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

log = logging.getLogger(__name__)

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
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
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


class Answer(JSONResponse):
    """JSON that a terminal only shows, whatever names it has: `curl` prints it there."""

    def render(self, content: Any) -> bytes:
        """As bytes."""
        return json_text(content, allow_nan=False).encode()


def error_handlers(ways: str) -> dict[Any, Any]:
    """What a Starlette application answers to an error, and to a request that has no route.

    * `ways`: What can be asked instead.
    """

    async def failed(_request: Request, exc: Any) -> Response:
        return Answer({"error": exc.message, "fix": exc.fix}, _STATUS.get(exc.exit_code, 500), _NOT_KEPT)

    async def not_found(request: Request, exc: Any) -> Response:
        error = f"not found: {request.method} {request.url.path}"
        return Answer({"error": error, "fix": ways}, exc.status_code, _NOT_KEPT)

    return {PipelineError: failed, HTTPException: not_found}


class WebServer:
    """An application on a socket.

    Args:
        finish_seconds: How long requests may take to finish at the end.

    Raises:
        ListenRefused: The system does not let it listen there.
    """

    def __init__(self, app: Any, listen: Listen, *, finish_seconds: float = 1) -> None:
        self._app = app
        self._host = listen.host
        self._socket = _bound(listen)
        self._stopping = Event()
        self._config = Config()
        self._config.keep_alive_timeout = REQUEST_SECONDS
        self._config.graceful_timeout = finish_seconds
        self._config.backlog = _BACKLOG
        self._config.include_server_header = False
        self._config.errorlog = _SERVER_ERRORS
        self._config.create_sockets = lambda: Sockets([], [self._socket], [])  # type: ignore[method-assign]

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
        with self._socket:
            asyncio.run(serve(self._app, self._config, shutdown_trigger=self._until_stopped))

    def stop(self) -> None:
        """Make `run` return. From any thread; may be repeated, and come before `run`."""
        self._stopping.set()

    async def _until_stopped(self) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(_STOP_LOOK_SECONDS)


# It also reports each start.
_SERVER_ERRORS: Final = logging.getLogger(f"{__name__}.server")
_SERVER_ERRORS.setLevel(logging.ERROR)


class _ListeningSocket(socket.socket):
    """Takes over a socket that listens, and closes what comes while `most` connections are open."""

    def __init__(self, bound: socket.socket, most: int) -> None:
        super().__init__(bound.family, bound.type, bound.proto, bound.detach())
        self._most = most
        self._opened: WeakSet[socket.socket] = WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        """As that of a socket; `ConnectionAbortedError` for a connection that was closed at once."""
        connection, address = super().accept()
        if sum(other.fileno() >= 0 for other in self._opened) >= self._most:
            connection.close()
            raise ConnectionAbortedError
        self._opened.add(connection)
        return connection, address


def connection_limit() -> int:
    """At most `MOST_CONNECTIONS`, and at most a quarter of the descriptors that this process may open."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if descriptors == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, descriptors // 4)


def _bound(listen: Listen) -> socket.socket:
    try:
        family, *_ = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
        bound = socket.create_server((listen.host, listen.port), family=family, backlog=_BACKLOG)
    except OSError as exc:
        msg = f"cannot listen on {listen.host}:{listen.port}: {exc.strerror or exc}"
        raise ListenRefused(msg, "choose another port; 0 means any free one", exit_code=4) from exc
    return _ListeningSocket(bound, connection_limit())


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


def metrics_route(registry: CollectorRegistry) -> Route:
    """The route /metrics: a registry in the text format of Prometheus."""

    async def metrics(_request: Request) -> Response:
        # On a thread: gauges take locks.
        return Response(await run_in_threadpool(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", metrics)


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
    guard = Middleware(Guard, any_host=not listen.is_loopback)
    app = Starlette(
        routes=[metrics_route(registry)], middleware=[guard], exception_handlers=error_handlers("GET /metrics")
    )
    try:
        server = WebServer(app, listen)
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
