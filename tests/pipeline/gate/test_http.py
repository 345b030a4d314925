"""The side-car: its query, its answers in one process over a topic in memory, where it listens, and how it ends."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from pipeline.gate import http as gate_http
from pipeline.gate.http import gate_metrics
from pipeline.web import Listen, ReadAtScrape, WebServer
from tests.pipeline.cli.running import kquota
from tests.pipeline.gate.gate_setting import GateSetting
from tests.waiting import PATIENCE_SECONDS

# Its import warns that another library will take its place.
testclient = pytest.importorskip("starlette.testclient")

ALICE = "/v1/throttle?user=alice&client_id=etl"


def client_of(setting: GateSetting, token: str | None = None, registry: CollectorRegistry | None = None) -> Any:
    return testclient.TestClient(gate_http.build_app(setting.gate, token, registry), base_url="http://127.0.0.1:8787")


@pytest.fixture
def setting() -> Iterator[GateSetting]:
    made = GateSetting(pool_bytes=2 * gate_http.LONG_POLL_BYTES, max_request_bytes=gate_http.LONG_POLL_BYTES)
    with made.gate:
        yield made


@pytest.fixture
def client(setting: GateSetting) -> Any:
    return client_of(setting)


def test_a_throttled_client_is_a_429_with_end_and_reason(setting: GateSetting, client: Any) -> None:
    setting.throttle("älice", for_ms=2_000, owed_ms=7_500, broker_id="1", client_id="etl & co")
    setting.clock.advance(500)
    answer = client.get("/v1/throttle?user=%C3%A4lice&client_id=etl%20%26%20co&broker_id=1&wait_ms=0")
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "2"
    assert answer.json() == {
        "throttled": True,
        "user": "älice",
        "client_id": "etl & co",
        "broker_id": "1",
        "throttled_until_ms": 3_000,
        "remaining_ms": 1_500,
        "owed_ms": 7_000,
        "reason": {
            "quota_type": "producer_byte_rate",
            "observed": 2.0,
            "bound": 1.0,
            "window_ms": 10_000,
            "cause": "violation",
            "decision_id": "d",
        },
    }


def test_all_running_throttles_are_listed_and_a_name_changes_no_terminal(setting: GateSetting, client: Any) -> None:
    assert client.get("/v1/throttles").json() == {"throttles": []}
    setting.throttle("alice", for_ms=5_000, client_id="\x9b2J")
    setting.throttle("bob", for_ms=2_000, client_id=None, except_client_ids=("web",))
    answer = client.get("/v1/throttles")
    assert "\x9b" not in answer.text
    of_bob, of_alice = answer.json()["throttles"]
    assert (of_alice["user"], of_alice["client_id"], of_alice["remaining_ms"]) == ("alice", "\x9b2J", 5_000)
    held = [client.get(f"/v1/throttle?user=bob&client_id={name}") for name in ("etl", "", "null")]
    assert [(one.status_code, one.json()["client_id"]) for one in held] == [(429, None)] * 3
    assert client.get("/v1/throttle?user=bob&client_id=web").json() == {"throttled": False}
    assert of_bob == {**held[0].json(), "except_client_ids": ["web"]}


def test_a_waiting_request_is_answered_when_its_client_is_released(setting: GateSetting, client: Any) -> None:
    setting.throttle()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, f"{ALICE}&wait_ms=60000")
        setting.wait_for(1)
        assert setting.occupancy.pool_used_bytes == gate_http.LONG_POLL_BYTES
        setting.release()
        answer = waiting.result(PATIENCE_SECONDS)
    assert (answer.status_code, answer.json()) == (200, {"throttled": False})
    setting.assert_empty()


def test_health_says_how_far_the_gate_is_and_is_always_200() -> None:
    for is_reachable, status in ((True, "ok"), (False, "catching-up")):
        setting = GateSetting(is_reachable=is_reachable)
        setting.gate.start()
        answers = [client_of(setting).get("/healthz")]
        setting.gate.close()
        answers.append(client_of(setting).get("/healthz"))
        assert [(one.status_code, one.json()["status"]) for one in answers] == [(200, status), (200, "stale")]


def test_metrics_are_the_gauges_of_the_gate_and_how_it_has_answered(setting: GateSetting) -> None:
    registry = CollectorRegistry()
    registry.register(ReadAtScrape(lambda: gate_metrics(setting.gate)))
    client = client_of(setting, registry=registry)
    client.get(ALICE)
    setting.throttle()
    for _ in range(2):
        client.get(ALICE)
    answer = client.get("/metrics")
    assert (answer.status_code, answer.headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
    told = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert told['kquota_gate_state{state="following"}'] == "1.0"
    assert (told["kquota_gate_throttles"], told["kquota_gate_pool_size_bytes"]) == ("1.0", "32768.0")
    assert told['kquota_gate_answers_total{answer="go"}'] == "1.0"
    assert told['kquota_gate_answers_total{answer="throttled"}'] == "2.0"
    assert "alice" not in answer.text


def test_a_request_that_goes_away_leaves_nothing_and_a_stop_answers_those_that_wait(setting: GateSetting) -> None:
    setting.throttle()
    server = gate_http.GateServer(setting.gate, Listen("127.0.0.1", 0), None)
    path = f"{ALICE}&wait_ms=60000"
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.run)
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            gone.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            setting.wait_for(1)
        setting.wait_for(0)
        setting.assert_empty()
        waiting = pool.submit(httpx.get, f"http://127.0.0.1:{server.port}{path}", timeout=PATIENCE_SECONDS)
        setting.wait_for(1)
        for _ in range(2):
            server.stop()
        assert waiting.result(PATIENCE_SECONDS).json() == {"throttled": False}
        running.result(PATIENCE_SECONDS)
    assert setting.gate.state == "closed"


def test_the_command_answers_without_a_broker_and_ends_clean() -> None:
    command = [sys.executable, "-m", "pipeline.cli.main", "gate", "--listen", "127.0.0.1:0"]
    command += ["--bootstrap-server", "127.0.0.1:1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as side_car:
        try:
            assert side_car.stderr is not None
            port = side_car.stderr.readline().split()[3].rstrip(",")
            answer = httpx.get(f"http://127.0.0.1:{port}/v1/throttle?user=alice", timeout=PATIENCE_SECONDS)
            assert answer.json() == {"throttled": False}
            side_car.terminate()
            assert side_car.wait(PATIENCE_SECONDS) == 0
            assert "Traceback" not in side_car.stderr.read()
        finally:
            side_car.kill()


@pytest.mark.parametrize(
    "command", ["gate --listen 0.0.0.0:0 --bootstrap-server 127.0.0.1:1", "dashboard --host 0.0.0.0"]
)
def test_without_a_token_no_server_listens_to_other_machines(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebServer, "run", lambda _: None)
    answer = kquota(*command.split())
    assert answer.exit_code == 2
    assert "other machines can reach 0.0.0.0, and there is no token. Fix: " in answer.stderr


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("GET", "/v2/throttle", 404, "not found: GET /v2/throttle"),
        ("POST", "/v1/throttle", 405, "not found: POST /v1/throttle"),
        ("GET", "/metrics", 404, "not found: GET /metrics"),
        ("GET", "/v1/throttle?id=x", 400, "unknown parameter 'id'; use user, client_id, broker_id, wait_ms"),
        ("GET", "/v1/throttle", 400, "'user' is missing"),
        ("GET", "/v1/throttle?user=", 400, "'user' is empty"),
        ("GET", "/v1/throttle?user=a&user=b", 400, "'user' is given twice"),
        *(
            ("GET", f"{ALICE}&id=x&wait_ms={text}", 400, f"'wait_ms' is not a whole number from 0 to 60000: '{text}")
            for text in ("-1", "60001", "1.5", "", "²", "9" * 20)
        ),
    ],
)
def test_mistakes_are_named_in_the_answer(client: Any, method: str, path: str, status: int, told: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert told in answer.json()["error"]


def test_with_a_token_only_requests_that_carry_it_are_answered(setting: GateSetting) -> None:
    client = client_of(setting, "right", CollectorRegistry())
    for headers, status in (({"Authorization": "Bearer right"}, 200), ({}, 401)):
        answers = [client.get(path, headers=headers) for path in (ALICE, "/v1/throttles", "/metrics", "/healthz")]
        assert [answer.status_code for answer in answers] == [status, status, status, 200]
        assert not any("right" in answer.text for answer in answers)


@pytest.mark.parametrize(("remaining_ms", "retry_after"), [(1, "1"), (1_000, "1"), (1_001, "2"), (60_000, "60")])
def test_retry_after_rounds_seconds_up(setting: GateSetting, client: Any, remaining_ms: int, retry_after: str) -> None:
    setting.throttle(for_ms=remaining_ms)
    assert client.get(ALICE).headers["Retry-After"] == retry_after
