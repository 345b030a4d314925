"""One server for gate, dashboard and metrics: who may ask, what is asked, and that unfinished requests stop nothing."""

import asyncio
import re
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from pipeline import web
from pipeline.settings.model import MetricsSettings
from pipeline.web import Guard, Listen, ListenRefused, WebServer, metrics_endpoint, new_registry
from tests.waiting import PATIENCE_SECONDS, wait_until

HALF = b"GET /v1/throttle HTTP/1.1\r\nX: "
WHOLE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def hello(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@contextmanager
def served(app: Any) -> Iterator[Callable[..., socket.socket]]:
    """Gives what connects to a server of the application, and may send something at once."""

    async def requests_only(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    server = WebServer(requests_only, Listen("127.0.0.1", 0))
    thread = Thread(target=server.run)
    thread.start()
    with ExitStack() as connections:

        def connect(sent: bytes = b"") -> socket.socket:
            made = connections.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS)
            )
            made.sendall(sent)
            return made

        try:
            yield connect
        finally:
            server.stop()
            thread.join()


def status(connection: socket.socket) -> str:
    return connection.recv(4_096).decode().partition("\r\n")[0].removeprefix("HTTP/1.1 ").strip()


def is_cut(connection: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        while connection.recv(65_536):
            pass
    return True


@pytest.mark.parametrize(
    "sent",
    [b"", b"G", HALF, WHOLE + HALF, HALF + b"\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"],
    ids=["nothing", "a letter", "half the headers", "a request and a half", "half a body"],
)
def test_a_request_that_does_not_end_has_a_deadline(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.2)
    with served(hello) as connect:
        assert is_cut(connect(sent))


def test_beyond_the_most_connections_a_newcomer_is_closed_until_one_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MOST_CONNECTIONS", 3)
    with served(hello) as connect:
        opened = [connect(HALF) for _ in range(3)]
        assert is_cut(connect(WHOLE))
        opened[0].close()

        def is_answered() -> bool:
            with suppress(ConnectionResetError):
                return status(connect(WHOLE)) == "200"
            return False

        wait_until(is_answered, "room for a connection")


@pytest.mark.parametrize(("descriptors", "limit"), [(1_024, 256), (100_000, 4_096), (-1, 4_096)])
def test_connections_take_at_most_a_quarter_of_the_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, limit: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (descriptors, descriptors))
    assert web.connection_limit() == limit


def test_a_request_that_waits_for_its_answer_outlasts_the_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.1)
    asked, go_on = Event(), Event()

    async def late(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await asyncio.to_thread(go_on.wait, PATIENCE_SECONDS)
        await hello(scope, receive, send)

    with served(late) as connect:
        waiting = connect(WHOLE)
        asked.wait(PATIENCE_SECONDS)
        assert is_cut(connect(HALF))
        go_on.set()
        assert status(waiting) == "200"


def ask(guard: Guard, path: str = "/api", **headers: str) -> tuple[int, str]:
    answers: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        answers.append(message)

    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(guard({"type": "http", "path": path, "headers": given}, receive, send))
    return answers[0]["status"], answers[1]["body"].decode()


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [("127.0.0.1", True), ("127.0.0.1:8787", True), ("[::1]:8787", True), ("LocalHost:1", True), ("::1", False),
     ("attacker.example", False), ("localhost.attacker.example", False), ("10.0.0.7:8787", False), ("", False)],
)  # fmt: skip
def test_without_a_token_only_names_of_this_machine_are_answered(host: str, is_answered: bool) -> None:
    code, body = ask(Guard(hello), host=host)
    assert code == (200 if is_answered else 421)
    assert is_answered or f"host {host} is not a name of this machine" in body
    assert ask(Guard(hello), "/healthz", host=host)[0] == 200
    assert ask(Guard(hello, any_host=True), host=host)[0] == 200
    assert ask(Guard(hello, "secret"), host=host, authorization="Bearer secret")[0] == 200


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer other"}, {"authorization": "secret"}], ids=str)
def test_without_the_right_token_only_open_paths_are_answered(given: dict[str, str]) -> None:
    guard = Guard(hello, "secret", is_open=lambda path: path == "/page", headers={"X-Frame": "none"})
    code, body = ask(guard, **given)
    assert code == 401
    assert "secret" not in body
    assert [ask(guard, path, **given)[0] for path in ("/page", "/healthz", "/readyz")] == [200, 200, 200]


@pytest.mark.parametrize(
    ("text", "listen", "is_loopback"),
    [
        ("127.1.2.3:0", Listen("127.1.2.3", 0), True),
        ("[::1]:65535", Listen("::1", 65_535), True),
        ("localhost:1", Listen("localhost", 1), True),
        ("0.0.0.0:1", Listen("0.0.0.0", 1), False),  # noqa: S104 - the case
        ("[::]:1", Listen("::", 1), False),
        ("gate.example:1", Listen("gate.example", 1), False),
    ],
)
def test_an_address_is_read(text: str, listen: Listen, is_loopback: bool) -> None:
    assert web.parse_listen(text) == listen
    assert listen.is_loopback == is_loopback


@pytest.mark.parametrize("text", ["", "8787", ":8787", "127.0.0.1:", "127.0.0.1:65536", "a:b", "::1:80", "h:-1"])
def test_a_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ListenRefused, match="'--listen' is not HOST:PORT: "):
        web.parse_listen(text)


def test_the_token_comes_from_the_file_else_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-the-file \nrest\n")
    environ = {"TOKEN": "of-the-environment"}
    assert web.read_token(tmp_path / "token", "TOKEN", environ) == "of-the-file"
    assert web.read_token(None, "TOKEN", environ) == "of-the-environment"
    assert web.read_token(None, "TOKEN", {}) is None
    with pytest.raises(ListenRefused, match="cannot be read"):
        web.read_token(tmp_path / "none", "TOKEN")


@pytest.mark.parametrize("content", [b"", b"\nlater", b"two words", "schlüssel".encode(), b"\xff"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ListenRefused) as refused:
        web.read_token(tmp_path / "token", "TOKEN")
    assert not re.search("two|schl", str(refused.value))


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenRefused, match=f"cannot listen on 127.0.0.1:{port}: ") as busy:
            WebServer(hello, Listen("127.0.0.1", port))
        with pytest.raises(ListenRefused) as refused, metrics_endpoint(MetricsSettings(port=port), CollectorRegistry()):
            pass
    assert busy.value.exit_code == 4
    assert "--metrics-port" in refused.value.fix


def read(port: int, **headers: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port}/metrics", headers=headers, timeout=PATIENCE_SECONDS)


def test_metrics_are_read_while_the_program_runs_and_only_at_the_port_given() -> None:
    registry = new_registry("meter")
    Counter("some", "text", registry=registry).inc()
    with metrics_endpoint(MetricsSettings(port=0), registry) as port, ExitStack() as connections:
        assert port is not None
        for _ in range(40):
            connections.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(HALF)
        told = read(port).text
        assert read(port, host="attacker.example").status_code == 421
    assert 'kquota_build_info{program="meter",version="' in told
    assert "_created" not in told, "no second series for each counter"
    assert "process_resident_memory_bytes" in told
    with pytest.raises(httpx.ConnectError):
        read(port)
    with metrics_endpoint(MetricsSettings(), CollectorRegistry()) as nowhere:
        assert nowhere is None
