"""Where the side-car listens, who may ask it, and how it ends."""

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.web import Listen
from tests.pipeline.cli.running import kquota
from tests.pipeline.gate.gate_setting import GateSetting
from tests.waiting import PATIENCE_SECONDS

gate_server = pytest.importorskip("pipeline.gate.http", reason="the extra gate is not installed")


def test_the_command_refuses_an_open_address_in_one_line() -> None:
    answer = kquota("gate", "--listen", "0.0.0.0:0", "--bootstrap-server", "127.0.0.1:1")
    assert answer.exit_code == 2
    assert answer.stderr == (
        "kquota: other machines can reach 0.0.0.0, and there is no token. "
        "Fix: listen on 127.0.0.1, or give --token-file or KQUOTA_GATE_TOKEN\n"
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
