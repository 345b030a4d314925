"""The rules for jmx_exporter, in the real one: what the meter reads of the beans of Kafka's own JmxReporter."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.meter.scrapes import FETCHED, PRODUCED, REQUEST, NameMap, SensorTable
from tests.deploy.commands import DEPLOY
from tests.pipeline.meter.jmx_exporter import QuotaSensor, exported_page

TEXT = (DEPLOY / "prometheus" / "jmx-quotas.yml").read_text("utf-8")
FILE: dict[str, Any] = yaml.safe_load(TEXT)

# Of jmx_exporter's example for KRaft, where it comes before the rules for quotas.
GENERAL: dict[str, Any] = {"pattern": "kafka.server<type=(.+)><>([a-z-]+)", "name": "kafka_server_$1_$2"}

CLIENT_IDS = (
    "etl",
    '"etl"',
    "x, user=bob",
    "x, user=bob, client-id=y",
    "kafka.server<type=Produce, user=bob, client-id=etl><>byte-rate",
    "kafka.server<type=Produce, user=bob, client-id=etl><>byte-rate: 5.0",
    "x><>byte-rate: 5",
    "x><>byte-rate: <cache>",
    "a\nb",
    "a\rb",
    "a\u2028b\u0085c",
    'a,"b"\\*?=:',
    "$1 $2 \\1",
    "é€😀",
    "," * 32_767,
)
"""What clients of alice call themselves."""


def shown(page: bytes) -> dict[tuple[int, str, str], float]:
    """The rates that the meter charges, by what is measured, user and client-id."""
    sensors = SensorTable("1", NameMap())
    read = sensors.read(page)
    assert read.refused == 0, read.reason
    clients = [(measure, sensors.clients[client]) for measure, client in sensors.places.tolist()]
    keys = [(measure, client.user, client.client_id) for measure, client in clients]
    return dict(zip(keys, read.rates.tolist(), strict=True))


def test_every_client_is_charged_with_its_own_rate_whatever_it_calls_itself(tmp_path: Path) -> None:
    rates = {name: float(number) for number, name in enumerate(CLIENT_IDS, 1)}
    sensors = [QuotaSensor("Produce", "byte-rate", rate, "alice", name) for name, rate in rates.items()]
    sensors += [QuotaSensor("Produce", "throttle-time", 0.5, "alice", name) for name in CLIENT_IDS]
    sensors += [QuotaSensor("Produce", "byte-rate", rate + 100, "", name) for name, rate in rates.items()]
    sensors += [
        QuotaSensor("Produce", "byte-rate", 200.0, "bob", "etl"),
        QuotaSensor("Fetch", "byte-rate", 201.0, "CN=a b,O=*~", ""),
        QuotaSensor("Request", "request-time", 2.0, "alice", ""),
        QuotaSensor("ControllerMutation", "byte-rate", 3.0, "alice", ""),
        QuotaSensor("Request", "exempt-request-time", 4.0, "", ""),
    ]
    assert shown(exported_page(TEXT, sensors, tmp_path)) == {
        **{(PRODUCED, "alice", name): rate for name, rate in rates.items()},
        **{(PRODUCED, "ANONYMOUS", name): rate + 100 for name, rate in rates.items()},
        (PRODUCED, "bob", "etl"): 200.0,
        (FETCHED, "CN=a b,O=*~", ""): 201.0,
        (REQUEST, "alice", ""): 2e7,
    }


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_general_rule_before_them_takes_the_labels_away_and_one_behind_them_does_not(
    is_behind: bool, tmp_path: Path
) -> None:
    rules = {**FILE, "rules": [*FILE["rules"], GENERAL] if is_behind else [GENERAL, *FILE["rules"]]}
    page = exported_page(yaml.safe_dump(rules), [QuotaSensor("Produce", "byte-rate", 5.0, "alice", "etl")], tmp_path)
    assert b"alice" in page
    assert shown(page) == ({(PRODUCED, "alice", "etl"): 5.0} if is_behind else {})


def test_no_other_bean_is_asked() -> None:
    assert FILE["includeObjectNames"] == [f"kafka.server:type={name},*" for name in ("Produce", "Fetch", "Request")]
