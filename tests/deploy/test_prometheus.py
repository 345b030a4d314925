"""The alerts of deploy/prometheus, tested by promtool; and every PromQL text of deploy, run on a real Prometheus.

It scrapes a real gate (a process), and the metrics of a job, a meter and a sync, fed by real parts.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from pipeline.brokers.running import SyncMetrics
from pipeline.clock import SystemClock
from pipeline.job.metrics import JobMetrics
from pipeline.meter.scrape_meter import ExporterSource, ScrapeMeter, scrape_metrics
from pipeline.meter.usage_topic import UsagePublisher
from pipeline.process import free_ports
from pipeline.settings.model import MetricsSettings
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.table import TenantTable, local_audit
from pipeline.tables.quotas.tenants import new_tenant
from pipeline.web import ReadAtScrape, metrics_endpoint, new_registry
from quota.broker_levels.sync import BrokerSync
from tests.deploy.commands import DEPLOY, of_the_system, run, serving
from tests.fakes.usage_topic import MemoryUsageTopic, UsageBroker
from tests.faults.hand_job import HandJob
from tests.pipeline.demo.played import OFFENDER, new_job, throttle_one
from tests.waiting import PATIENCE_SECONDS, wait_until


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of a PromQL expression now; a mistake in it is an assertion that quotes Prometheus."""
        answer = self.get("query", query=expression)
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        return list(answer["data"]["result"])

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.get("rules")["data"]["groups"] for rule in group["rules"]]

    def get(self, path: str, **parameters: str) -> Any:
        return httpx.get(f"{self.address}/api/v1/{path}", params=parameters, timeout=PATIENCE_SECONDS).json()

    def is_ready(self) -> bool:
        with suppress(httpx.TransportError, ValueError):
            return bool(self.query("1"))
        return False


def deployed(ports: Mapping[str, int]) -> str:
    """The configuration of deploy/prometheus: only intervals and ports, of each program, are others."""
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8")
    for name, documented in (("job", 9464), ("meter", 9465), ("sync", 9466), ("gate", 8787)):
        assert f"127.0.0.1:{documented}" in text
        text = text.replace(f'["127.0.0.1:{documented}"]', f'["127.0.0.1:{ports[name]}"]')
    text = text.replace("scrape_interval: 5s", "scrape_interval: 500ms").replace(
        "evaluation_interval: 15s", "evaluation_interval: 1s"
    )
    return text.replace("rules.yml", str(DEPLOY / "prometheus" / "rules.yml"))


@contextmanager
def running_prometheus(folder: Path, configuration: str) -> Iterator[Prometheus]:
    (folder / "prometheus.yml").write_text(configuration, "utf-8")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [of_the_system("prometheus", "prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}", "--log.level=error"]
    with subprocess.Popen(command) as process:
        try:
            prometheus = Prometheus(f"http://{address}")
            wait_until(prometheus.is_ready, "Prometheus to be ready")
            yield prometheus
        finally:
            process.terminate()


RULES = DEPLOY / "prometheus" / "rules.yml"
BOARDS = [DEPLOY / "grafana" / name for name in ("kquota.json", "kquota-team.json")]
ANY_PORT = MetricsSettings(port=0)
OURS = re.compile(r"\bkquota_[a-z_]+")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


def board_expressions() -> list[str]:
    panels = [panel for board in BOARDS for panel in json.loads(board.read_text("utf-8"))["panels"]]
    targets = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [text.replace("$__rate_interval", "1m").replace("$user", f"guest|{OFFENDER[0]}") for text in targets]


def runbook() -> list[str]:
    page = (DEPLOY.parent / "docs" / "runbook.md").read_text("utf-8").partition("\n## By alert\n")[2]
    return re.findall(r"^### (.*)$", page, re.MULTILINE)


@contextmanager
def served_job(folder: Path) -> Iterator[int]:
    registry = new_registry("job")
    job: HandJob = new_job(folder)
    job.listeners = JobMetrics(registry, SystemClock()).listeners
    root = job.settings.tables.root
    create_missing(root, [TABLES["tenants"]])
    tenant = new_tenant("data") | {"user_patterns": (OFFENDER[0], "guest"), "producer_byte_rate": 1_000.0}
    TenantTable(root).commit(lambda _: [tenant], local_audit("at its bound"))
    job.start()
    throttle_one(job)
    job.send(b"no json", None)
    job.step()
    job.clock.advance(20_000)
    job.step()  # looks, and renews
    event = {"event_time_ms": job.clock.wall_ms, "user": "guest", "client_id": "app", "produced_bytes": 500}
    held = {**event, "user": OFFENDER[0], "client_id": OFFENDER[1], "produced_bytes": 1, "broker_throttle_ms": 9_000}
    job.send(json.dumps(event).encode(), json.dumps(held).encode())
    throttle_one(job)
    throttle_one(job)  # after 6 batches the clocks are known
    with metrics_endpoint(ANY_PORT, registry) as port:
        assert port is not None
        yield port


@contextmanager
def served_meter_and_sync() -> Iterator[dict[str, int]]:
    meter_registry, sync_registry = new_registry("meter"), new_registry("sync")
    publisher = UsagePublisher(MemoryUsageTopic(UsageBroker()), "memory")
    source = ExporterSource("1", "http://127.0.0.1:1/metrics")
    meter = ScrapeMeter([source], publisher, SystemClock(), lambda _: True)
    meter_registry.register(ReadAtScrape(lambda: scrape_metrics(meter, publisher)))
    SyncMetrics(sync_registry, SystemClock()).period_done(BrokerSync(), 2)
    with metrics_endpoint(ANY_PORT, meter_registry) as port, metrics_endpoint(ANY_PORT, sync_registry) as other_port:
        assert port is not None
        assert other_port is not None
        yield {"meter": port, "sync": other_port}


@contextmanager
def real_gate() -> Iterator[int]:
    """`kquota gate`, which needs no broker to answer."""
    with serving("gate", "--listen", "127.0.0.1:0", "--bootstrap-server", "127.0.0.1:1") as address:
        httpx.get(f"{address}/v1/throttle?user=alice&client_id=etl", timeout=PATIENCE_SECONDS)
        yield int(address.rpartition(":")[2])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    of_the_system("prometheus", "prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        ports = {
            "job": stack.enter_context(served_job(folder)),
            "gate": stack.enter_context(real_gate()),
            **stack.enter_context(served_meter_and_sync()),
        }
        yield stack.enter_context(running_prometheus(folder, deployed(ports)))


def test_every_alert_fires_when_it_should_and_only_then() -> None:
    done = run(of_the_system("promtool", "prometheus"), "test", "rules", "rules_test.yml", folder=RULES.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    amtool = of_the_system("amtool", "prometheus-alertmanager")
    assert "1 receivers" in run(amtool, "check-config", RULES.with_name("alertmanager.yml")).stdout


def test_an_alert_links_to_what_to_do_and_to_a_silence_of_itself() -> None:
    assert sorted(runbook()) == sorted({rule["alert"] for rule in rules()}), "every alert has its part, every part one"
    for rule in rules():
        told, name = rule["annotations"], rule["alert"]
        assert told["runbook_url"] == f"{{{{ $externalLabels.kquota_docs }}}}/runbook.md#{name.lower()}"
        assert f"/#/silences/new?filter=%7Balertname%3D%22{name}%22%2C" in told["silence_url"]


def test_a_real_prometheus_reads_every_program_and_evaluates_every_rule(prometheus: Prometheus) -> None:
    wait_until(lambda: len(prometheus.query('up{job="kquota"} == 1')) == 4, "all four programs to be scraped")
    found = {one["metric"]["program"] for one in prometheus.query("kquota_build_info == 1")}
    assert found == {"job", "meter", "sync", "gate"}
    for rule in rules():
        prometheus.query(rule["expr"])
        for name in OURS.findall(rule["expr"]):
            wait_until(lambda name=name: bool(prometheus.query(name)), f"{name} of {rule['alert']}")  # type: ignore[misc]
    wait_until(
        lambda: all(rule["health"] == "ok" for rule in prometheus.rules()),
        "every rule to be evaluated without an error",
    )
    assert {rule["name"] for rule in prometheus.rules()} == {rule["alert"] for rule in rules()}
    wait_until(lambda: bool(prometheus.query('ALERTS{alertname="KquotaNearBound"}')), "the alert to be pending")


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_a_board_counts_a_hold_once_and_its_commands_are_of_one_user(board: Path) -> None:
    found = json.loads(board.read_text("utf-8"))
    assert "sum by (user, client_id) (rate(kquota_client_held_seconds" not in str(found), "it may be of two quota types"
    several = {one["name"] for one in found["templating"]["list"] if one.get("multi") or one.get("includeAll")}
    texts = [panel["options"]["content"] for panel in found["panels"] if panel["type"] == "text"]
    assert not several & set(re.findall(r"\$(\w+)", " ".join(texts))), "All is no name"


@pytest.mark.parametrize("expression", board_expressions())
def test_an_expression_of_the_dashboard_shows_something(prometheus: Prometheus, expression: str) -> None:
    wait_until(lambda: bool(prometheus.query(expression)), f"a value of {expression}")
