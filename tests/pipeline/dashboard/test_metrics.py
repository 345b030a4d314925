"""What the dashboard tells Prometheus, asked of the real application over real tables."""

import subprocess
from collections.abc import Iterator
from shutil import which

import pytest
from prometheus_client import CollectorRegistry

from pipeline.dashboard.http import build_app
from pipeline.dashboard.reader import Feed, TablesReader
from pipeline.dashboard.views import Answers
from pipeline.process import JobSigns
from pipeline.settings.model import Settings, TablesSettings
from pipeline.web import new_registry
from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.waiting import PATIENCE_SECONDS, wait_until

# Its import warns that another library will take its place.
testclient = pytest.importorskip("starlette.testclient")


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


def test_the_age_of_the_newest_batch_grows_also_when_nobody_looks(asked: Asked, shop: LivedTables) -> None:
    assert asked.feed.state is not None
    batch = asked.feed.state.batch
    assert batch is not None
    for later_ms in (0, 90_000):
        asked.later_ms = later_ms
        now_ms = shop.now_ms + later_ms
        assert asked.metric("batch_age_seconds") == (now_ms - batch["processed_at_ms"]) / 1000
        assert asked.metric("look_age_seconds") == later_ms / 1000


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
