"""The health check of the image, against the programs that it asks."""

import sys
from pathlib import Path

from prometheus_client import Counter

from pipeline.metrics import metrics_endpoint, new_registry
from pipeline.settings.model import MetricsSettings
from pipeline.tables.layout import create_missing
from tests.deploy.checkers import run, serving
from tests.deploy.commands import DEPLOY, programs
from tests.waiting import wait_until

HEALTH = DEPLOY / "image" / "health.py"
WANTED = "kquota_query_starts_total"


def asked(*arguments: str) -> tuple[int, str]:
    done = run(sys.executable, HEALTH, *arguments)
    return done.returncode, done.stderr


def probed_paths(program: str) -> set[str]:
    return {path for one in programs() if one.name == program for _, path in one.probed}


def test_a_gate_without_a_broker_is_healthy() -> None:
    with serving("gate", "--listen", "127.0.0.1:0", "--bootstrap-server", "127.0.0.1:1") as address:
        paths = probed_paths("gate")
        assert paths
        assert {asked(f"{address}{path}") for path in paths} == {(0, "")}


def test_a_dashboard_is_alive_before_there_are_tables_and_ready_when_they_are(tmp_path: Path) -> None:
    assert probed_paths("dashboard") == {"/healthz", "/readyz"}
    with serving("dashboard", "--port", "0", "--tables", str(tmp_path / "tables")) as address:
        assert asked(f"{address}/healthz") == (0, "")
        code, told = asked(f"{address}/readyz")
        assert code == 1
        assert "503" in told
        create_missing(str(tmp_path / "tables"))
        wait_until(lambda: asked(f"{address}/readyz") == (0, ""), "the dashboard to read the tables")


def test_a_job_is_ready_when_its_query_has_started() -> None:
    registry = new_registry("job")
    with metrics_endpoint(MetricsSettings(port=0), registry) as port:
        address = f"http://127.0.0.1:{port}/metrics"
        assert asked(address) == (0, "")
        assert asked(address, WANTED)[0] == 1  # it is missing
        starts = Counter(WANTED.removesuffix("_total"), "As of the job.", registry=registry)
        assert asked(address, WANTED) == (1, f"{address}: {WANTED} is 0.0\n")
        starts.inc()
        assert asked(address, WANTED) == (0, "")


def test_a_program_that_does_not_answer_is_not_healthy() -> None:
    code, told = asked("http://127.0.0.1:1/metrics")
    assert code == 1
    assert "refused" in told
