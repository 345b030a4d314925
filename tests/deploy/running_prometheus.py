"""A real Prometheus that scrapes what a test serves."""

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.deploy.commands import DEPLOY, of_the_system
from tests.waiting import PATIENCE_SECONDS, wait_until


class Prometheus:
    """Its HTTP API."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of a PromQL expression now; a mistake in it is an assertion that quotes Prometheus."""
        answer = self._get("/api/v1/query", query=expression)
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with their health."""
        return [rule for group in self._get("/api/v1/rules")["data"]["groups"] for rule in group["rules"]]

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            return httpx.get(f"{self.address}/-/ready", timeout=PATIENCE_SECONDS).is_success
        except httpx.TransportError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        return httpx.get(self.address + path, params=parameters, timeout=PATIENCE_SECONDS).json()


def deployed(ports: Mapping[str, int]) -> str:
    """The configuration of deploy/prometheus: only intervals and ports are others.

    Args:
        ports: Of each program of kquota, where it serves its metrics on this machine.
    """
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
    """Start it; its data is in the folder."""
    (folder / "prometheus.yml").write_text(configuration, "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        of_the_system("prometheus", "prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    ]
    with subprocess.Popen(command) as process:
        try:
            prometheus = Prometheus(f"http://{address}")
            wait_until(prometheus.is_ready, "Prometheus to be ready")
            yield prometheus
        finally:
            process.terminate()
