"""Where metrics are read: at the port that was asked for, while the program runs, and nowhere if none was."""

import socket
import urllib.request
from contextlib import ExitStack
from urllib.error import HTTPError, URLError

import pytest
from prometheus_client import CollectorRegistry, Counter

from pipeline.settings.model import MetricsSettings
from pipeline.web import ListenRefused, metrics_endpoint, new_registry
from tests.waiting import PATIENCE_SECONDS


def read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_SECONDS) as answer:
        text: str = answer.read().decode()
    return text


def test_it_answers_while_the_block_runs_and_not_afterwards() -> None:
    registry = new_registry("meter")
    Counter("some", "text", registry=registry).inc()
    with metrics_endpoint(MetricsSettings(port=0), registry) as port:
        assert port is not None
        told = read(port)
    assert 'kquota_build_info{program="meter",version="' in told
    assert "_created" not in told, "no second series for each counter"
    assert "process_resident_memory_bytes" in told
    with pytest.raises(URLError):
        read(port)


def test_two_programs_share_nothing() -> None:
    first, second = new_registry("job"), new_registry("sync")
    assert first.get_sample_value("kquota_build_info", {"program": "sync"}) is None
    assert second.get_sample_value("kquota_build_info", {"program": "job"}) is None


def test_without_a_port_nothing_listens() -> None:
    with metrics_endpoint(MetricsSettings(), CollectorRegistry()) as port:
        assert port is None


def test_a_port_that_is_taken_is_told_with_a_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ListenRefused, match=rf"cannot listen on 127.0.0.1:{port}: ") as refused,
            metrics_endpoint(MetricsSettings(port=port), CollectorRegistry()),
        ):
            pass
    assert "--metrics-port" in refused.value.fix


def test_unfinished_requests_and_other_names_do_not_get_in_its_way() -> None:
    with metrics_endpoint(MetricsSettings(port=0), new_registry("job")) as port, ExitStack() as connections:
        assert port is not None
        for _ in range(40):
            connections.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(b"GET /metrics HTTP")
        assert "kquota_build_info" in read(port)
        request = urllib.request.Request(f"http://127.0.0.1:{port}", headers={"Host": "attacker.example"})
        with pytest.raises(HTTPError, match="421"):
            urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)  # noqa: S310 - our own address
