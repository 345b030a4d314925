"""Where the side-car listens, who may ask it, and how it ends."""

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.gate import listening
from pipeline.gate.errors import GateTokenInvalid, ListenAddressInvalid, ListenBusy, ListenUnguarded
from tests.pipeline.cli.running import kquota
from tests.pipeline.gate.gate_setting import GateSetting
from tests.waiting import PATIENCE_SECONDS

gate_server = pytest.importorskip("pipeline.gate.server", reason="the extra gate is not installed")
Listen = listening.Listen


@pytest.mark.parametrize(
    ("text", "listen", "is_loopback"),
    [
        ("127.0.0.1:8787", Listen("127.0.0.1", 8787), True),
        ("127.1.2.3:0", Listen("127.1.2.3", 0), True),
        ("[::1]:65535", Listen("::1", 65_535), True),
        ("localhost:1", Listen("localhost", 1), True),
        ("0.0.0.0:1", Listen("0.0.0.0", 1), False),  # noqa: S104 - the case
        ("[::]:1", Listen("::", 1), False),
        ("gate.example:1", Listen("gate.example", 1), False),
    ],
)
def test_an_address_is_read(text: str, listen: Any, is_loopback: bool) -> None:
    assert listening.parse_listen(text) == listen
    assert listen.is_loopback == is_loopback


@pytest.mark.parametrize("text", ["", "8787", ":8787", "127.0.0.1:", "127.0.0.1:65536", "a:b", "::1:80", "h:-1"])
def test_a_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ListenAddressInvalid, match="'--listen' must be HOST:PORT; got"):
        listening.parse_listen(text)


def test_the_token_comes_from_the_file_else_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-the-file \nrest\n")
    environ = {"KQUOTA_GATE_TOKEN": "of-the-environment"}
    assert listening.read_token(tmp_path / "token", environ) == "of-the-file"
    assert listening.read_token(None, environ) == "of-the-environment"
    assert listening.read_token(None, {}) is None


@pytest.mark.parametrize("content", [b"", b"\nlater", b"two words", "schlüssel".encode(), b"\xff"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(GateTokenInvalid) as refused:
        listening.read_token(tmp_path / "token")
    assert "two" not in str(refused.value)
    assert "schl" not in str(refused.value)
    with pytest.raises(GateTokenInvalid, match="can not be read"):
        listening.read_token(tmp_path / "none")


def test_an_address_that_others_can_reach_needs_a_token() -> None:
    gate = GateSetting().gate
    with pytest.raises(ListenUnguarded):
        gate_server.GateServer(gate, Listen("0.0.0.0", 0), None)  # noqa: S104 - the case


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenBusy, match=f"127.0.0.1:{port}: ") as busy:
            gate_server.GateServer(GateSetting().gate, Listen("127.0.0.1", port), None)
    assert busy.value.exit_code == 4


def test_the_command_refuses_an_open_address_in_one_line() -> None:
    answer = kquota("gate", "--listen", "0.0.0.0:0", "--bootstrap-server", "127.0.0.1:1")
    assert answer.exit_code == 2
    assert answer.stderr == (
        "kquota: '--listen' must be a loopback address without a token; got 0.0.0.0. "
        "To mend it: listen on 127.0.0.1, or give --token-file or KQUOTA_GATE_TOKEN\n"
    )


def test_stopping_answers_the_waiting_requests() -> None:
    setting = GateSetting()
    setting.gate.start()
    setting.throttle()
    server = gate_server.GateServer(setting.gate, Listen("127.0.0.1", 0), None)
    address = f"http://127.0.0.1:{server.port}/v1/throttle?user=alice&client_id=etl&wait_ms=60000"
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.run)
        waiting = pool.submit(lambda: urllib.request.urlopen(address, timeout=PATIENCE_SECONDS).read())
        setting.wait_for(1)
        for _ in range(2):
            server.stop()
        assert waiting.result(PATIENCE_SECONDS) == b'{"throttled":false}'
        running.result(PATIENCE_SECONDS)
    assert setting.gate.state == "closed"


@pytest.fixture
def side_car() -> Iterator["subprocess.Popen[str]"]:
    """A side-car of its own process, without a broker."""
    command = [sys.executable, "-m", "pipeline.cli.main", "gate", "--listen", "127.0.0.1:0"]
    command += ["--bootstrap-server", "127.0.0.1:1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        yield child
        child.kill()


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_the_command_answers_without_a_broker_and_ends_clean(
    side_car: "subprocess.Popen[str]", kind: signal.Signals
) -> None:
    assert side_car.stderr is not None
    said = side_car.stderr.readline()
    port = said.split()[3].rstrip(",")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/throttle?user=alice", timeout=PATIENCE_SECONDS) as answer:
        assert answer.read() == b'{"throttled":false}'
    side_car.send_signal(kind)
    assert side_car.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in side_car.stderr.read()
