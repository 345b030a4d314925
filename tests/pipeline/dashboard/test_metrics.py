"""What the dashboard tells Prometheus, asked of the real application over real tables."""

import asyncio
import subprocess
from collections.abc import Iterator
from shutil import which
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pipeline.metrics import new_registry
from pipeline.process import JobSigns
from pipeline.settings.model import Settings, TablesSettings
from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.waiting import PATIENCE_SECONDS, wait_until

testclient = pytest.importorskip("starlette.testclient", reason="the extra dashboard is not installed")

from pipeline.dashboard.http import build_app  # noqa: E402
from pipeline.dashboard.reader import Feed, TablesReader  # noqa: E402
from pipeline.dashboard.views import Answers  # noqa: E402


class Asked:
    """A dashboard, its registry, and a client on this machine."""

    def __init__(self, shop: LivedTables, token: str | None = None) -> None:
        reader = TablesReader(shop.root, JobSigns(lambda: "7"))
        self.later_ms = 0
        self.feed = Feed(reader, lambda: shop.now_ms)
        self.registry: CollectorRegistry = new_registry("dashboard")
        answers = Answers(reader, self.feed, Settings(tables=TablesSettings(root=shop.root)))
        self.app = build_app(answers, token, lambda: shop.now_ms + self.later_ms, self.registry)
        self.client = testclient.TestClient(self.app, base_url="http://127.0.0.1:8788", raise_server_exceptions=False)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"kquota_dashboard_{name}", labels)


@pytest.fixture
def asked(shop: LivedTables) -> Iterator[Asked]:
    made = Asked(shop)
    with made.client:
        wait_until(lambda: made.feed.state is not None, "the first look at the tables")
        yield made


def test_requests_are_counted_by_route_and_status(asked: Asked) -> None:
    for path in ("/api/v1/summary", "/api/v1/summary", "/api/v1/throttles?limit=0", "/static/app.js", "/static/no.js"):
        asked.client.get(path)
    asked.client.post("/api/v1/summary")
    asked.client.get("/api/v1/summary", headers={"Host": "evil.example"})
    counts = {
        (route, status): asked.metric("requests_total", route=route, status=status)
        for route, status in [
            ("/api/v1/summary", "200"),
            ("/api/v1/summary", "405"),
            ("/api/v1/summary", "421"),
            ("/api/v1/throttles", "400"),
            ("/static", "200"),
            ("/static", "404"),
        ]
    }
    assert list(counts.values()) == [2, 1, 1, 1, 1, 1]
    assert asked.metric("request_duration_seconds_count", route="/api/v1/summary") == 4
    assert asked.metric("request_duration_seconds_bucket", route="/api/v1/summary", le="+Inf") == 4


def test_a_path_that_anybody_makes_up_is_no_series_of_its_own(asked: Asked) -> None:
    for number in range(20):
        asked.client.get(f"/wp-admin/{number}")
    assert asked.metric("requests_total", route="other", status="404") == 20
    assert "wp-admin" not in asked.client.get("/metrics").text


def test_an_answer_that_fails_is_a_500(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("pipeline.dashboard.http.encoded", fails)
    assert asked.client.get("/healthz").status_code == 500
    assert asked.metric("requests_total", route="/healthz", status="500") == 1


def test_the_age_of_the_newest_batch_grows_also_when_nobody_looks(asked: Asked, shop: LivedTables) -> None:
    assert asked.feed.state is not None
    batch = asked.feed.state.batch
    assert batch is not None
    for later_ms in (0, 90_000):
        asked.later_ms = later_ms
        now_ms = shop.now_ms + later_ms
        assert asked.metric("batch_age_seconds") == (now_ms - batch["processed_at_ms"]) / 1000
        assert asked.metric("look_age_seconds") == later_ms / 1000


def test_streams_are_counted_while_they_last(asked: Asked) -> None:
    """By ASGI itself: the test client collects whole answers, and a stream has no end."""

    async def follow() -> None:
        gone = asyncio.Event()
        parts: list[Any] = []

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            parts.append(message)
            if message["type"] == "http.response.start":
                assert asked.metric("streams") == 1
                gone.set()

        scope = {
            "type": "http", "method": "GET", "path": "/api/v1/stream", "query_string": b"", "root_path": "",
            "headers": [(b"host", b"127.0.0.1")], "http_version": "1.1", "scheme": "http", "asgi": {"version": "3.0"},
        }  # fmt: skip
        await asked.app(scope, receive, send)
        assert parts[0]["status"] == 200

    assert asked.metric("streams") == 0
    asyncio.run(follow())
    assert asked.metric("streams") == 0
    assert asked.metric("requests_total", route="/api/v1/stream", status="200") == 1


def test_it_needs_the_token_as_the_data_do(shop: LivedTables) -> None:
    made = Asked(shop, "secret")
    with made.client:
        assert made.client.get("/metrics").status_code == 401
        answer = made.client.get("/metrics", headers={"Authorization": "Bearer secret", "Host": "board.example"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'kquota_build_info{program="dashboard"' in answer.text


def test_promtool_finds_nothing_to_complain_of(asked: Asked) -> None:
    promtool = which("promtool")
    if promtool is None:
        pytest.skip("checks the text with promtool: none on PATH; .ci/run installs it")
    asked.client.get("/api/v1/summary")
    text = asked.client.get("/metrics").text
    command = [promtool, "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    complaints = [line for line in (checked.stdout + checked.stderr).splitlines() if line.startswith("kquota_")]
    assert complaints == []
