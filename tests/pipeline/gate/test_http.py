"""The side-car: its query, its answers in one process over a topic in memory, where it listens, and how it ends."""

import asyncio
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from pipeline.gate import http as gate_http
from pipeline.gate.http import gate_metrics
from pipeline.web import Listen, ReadAtScrape
from tests.pipeline.cli.running import kquota
from tests.pipeline.gate.gate_setting import GateSetting
from tests.waiting import PATIENCE_SECONDS

ALICE = "/v1/throttle?user=alice&client_id=etl"


class Client:
    """Asks the application, without a socket; from any thread."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def get(self, path: str, headers: dict[str, str] | None = None) -> Any:
        return self.request("GET", path, headers)

    def request(self, method: str, path: str, headers: dict[str, str] | None = None) -> Any:
        async def ask() -> Any:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as client:
                return await client.request(method, path, headers=headers)

        return asyncio.run(ask())


@pytest.fixture
def setting() -> Iterator[GateSetting]:
    made = GateSetting(pool_bytes=2 * gate_http.LONG_POLL_BYTES, max_request_bytes=gate_http.LONG_POLL_BYTES)
    with made.gate:
        yield made


@pytest.fixture
def client(setting: GateSetting) -> Client:
    return Client(gate_http.build_app(setting.gate))


def test_a_throttled_client_is_a_429_with_end_and_reason(setting: GateSetting, client: Client) -> None:
    setting.throttle(for_ms=2_000, owed_ms=7_500)
    setting.clock.advance(500)
    answer = client.get(ALICE)
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "2"
    assert answer.json() == {
        "throttled": True,
        "user": "alice",
        "client_id": "etl",
        "broker_id": "",
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


def test_a_throttle_of_a_user_is_the_answer_for_all_client_ids_but_its_exceptions(
    setting: GateSetting, client: Client
) -> None:
    setting.throttle(for_ms=2_000, client_id=None, except_client_ids=("web",))
    held = [client.get(f"/v1/throttle?user=alice&client_id={name}") for name in ("etl", "new", "", "null")]
    assert [(one.status_code, one.json()["client_id"]) for one in held] == [(429, None)] * 4
    assert client.get("/v1/throttle?user=alice&client_id=web").json() == {"throttled": False}
    (listed,) = client.get("/v1/throttles").json()["throttles"]
    assert listed == {**held[0].json(), "except_client_ids": ["web"]}


def test_a_waiting_request_is_answered_when_its_client_is_released(setting: GateSetting, client: Client) -> None:
    setting.throttle()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, f"{ALICE}&wait_ms=60000")
        setting.wait_for(1)
        assert setting.occupancy.pool_used_bytes == gate_http.LONG_POLL_BYTES
        setting.release()
        answer = waiting.result(PATIENCE_SECONDS)
    assert (answer.status_code, answer.json()) == (200, {"throttled": False})
    setting.assert_empty()


def test_a_waiting_request_that_goes_away_leaves_nothing_behind(setting: GateSetting) -> None:
    setting.throttle()

    async def work() -> None:
        gone = asyncio.Event()
        messages = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(_message: Any) -> None:
            pass

        scope = {
            "type": "http", "method": "GET", "path": "/v1/throttle", "headers": [(b"host", b"localhost")],
            "query_string": b"user=alice&client_id=etl&wait_ms=60000",
        }  # fmt: skip
        request = asyncio.ensure_future(gate_http.build_app(setting.gate)(scope, receive, send))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while setting.occupancy.waiting == 0:
                await asyncio.sleep(0.002)
            gone.set()
            await request

    asyncio.run(work())
    setting.assert_empty()


@pytest.mark.parametrize(
    ("is_reachable", "is_closed", "status"), [(True, False, "ok"), (False, False, "catching-up"), (True, True, "stale")]
)
def test_health_says_how_far_the_gate_is_and_is_always_200(is_reachable: bool, is_closed: bool, status: str) -> None:
    setting = GateSetting(is_reachable=is_reachable)
    setting.gate.start()
    if is_closed:
        setting.gate.close()
    answer = Client(gate_http.build_app(setting.gate)).get("/healthz")
    assert (answer.status_code, answer.json()["status"]) == (200, status)
    setting.gate.close()


def test_metrics_are_the_gauges_of_the_gate_and_how_it_has_answered(setting: GateSetting) -> None:
    registry = CollectorRegistry()
    registry.register(ReadAtScrape(lambda: gate_metrics(setting.gate)))
    client = Client(gate_http.build_app(setting.gate, registry=registry))
    client.get(ALICE)
    setting.throttle(for_ms=2_000, owed_ms=7_500)
    client.get(ALICE)
    client.get(ALICE)
    answer = client.get("/metrics")
    assert (answer.status_code, answer.headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
    told = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert told['kquota_gate_state{state="following"}'] == "1.0"
    assert (told["kquota_gate_throttles"], told["kquota_gate_pool_size_bytes"]) == ("1.0", "32768.0")
    assert told['kquota_gate_answers_total{answer="go"}'] == "1.0"
    assert told['kquota_gate_answers_total{answer="throttled"}'] == "2.0"
    assert "alice" not in answer.text


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
    server = gate_http.GateServer(setting.gate, Listen("127.0.0.1", 0), None)
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


@pytest.mark.parametrize("kind", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
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


def test_all_running_throttles_are_listed_and_a_name_changes_no_terminal(setting: GateSetting, client: Client) -> None:
    assert client.get("/v1/throttles").json() == {"throttles": []}
    setting.throttle("alice", for_ms=5_000, client_id="\x9b2J")
    setting.throttle("bob", for_ms=2_000)
    answer = client.get("/v1/throttles")
    assert "\x9b" not in answer.text
    listed = [(each["user"], each["client_id"], each["remaining_ms"]) for each in answer.json()["throttles"]]
    assert listed == [("bob", "etl", 2_000), ("alice", "\x9b2J", 5_000)]


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
def test_mistakes_are_named_in_the_answer(client: Client, method: str, path: str, status: int, told: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert told in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (ALICE, {"Authorization": "Bearer right"}, 200),
        (ALICE, {}, 401),
        ("/v1/throttles", {}, 401),
        ("/metrics", {}, 401),
        ("/metrics", {"Authorization": "Bearer right"}, 200),
        ("/healthz", {}, 200),
    ],
)
def test_with_a_token_only_requests_that_carry_it_are_answered(
    setting: GateSetting, path: str, headers: dict[str, str], status: int
) -> None:
    answer = Client(gate_http.build_app(setting.gate, "right", CollectorRegistry())).get(path, headers=headers)
    assert answer.status_code == status
    assert "right" not in answer.text


def test_without_a_token_another_host_name_is_not_answered(client: Client) -> None:
    named = {"Host": "attacker.example"}
    assert [client.get(path, named).status_code for path in (ALICE, "/v1/throttles", "/healthz")] == [421, 421, 200]


def test_a_query_is_read() -> None:
    given = [("wait_ms", "60000"), ("broker_id", "1"), ("client_id", "etl & co"), ("user", "älice")]
    query = gate_http.ThrottleQuery(user="älice", client_id="etl & co", broker_id="1", wait_ms=60_000)
    assert gate_http.read_query(given) == query
    for given in ([("user", "alice")], [("user", "alice"), ("client_id", ""), ("wait_ms", "0")]):
        assert gate_http.read_query(given) == gate_http.ThrottleQuery(user="alice")


@pytest.mark.parametrize(("remaining_ms", "retry_after"), [(1, "1"), (1_000, "1"), (1_001, "2"), (60_000, "60")])
def test_retry_after_is_in_seconds_rounded_up(
    setting: GateSetting, client: Client, remaining_ms: int, retry_after: str
) -> None:
    setting.throttle(for_ms=remaining_ms)
    assert client.get(ALICE).headers["Retry-After"] == retry_after
