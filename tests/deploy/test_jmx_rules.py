"""The rules for jmx_exporter, in the real one: what the meter reads of the beans of Kafka's own JmxReporter."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.meter.scrapes import FETCHED, PRODUCED, QUOTA_PATTERNS, REQUEST, Page, SensorTable
from tests.deploy.commands import DEPLOY
from tests.pipeline.meter.jmx_exporter import QuotaSensor, exported_page

TEXT = (DEPLOY / "prometheus" / "jmx-quotas.yml").read_text("utf-8")
FILE: dict[str, Any] = yaml.safe_load(TEXT)

# Of jmx_exporter's example for KRaft, where it comes before the rules for quotas.
GENERAL: dict[str, Any] = {"pattern": "kafka.server<type=(.+)><>([a-z-]+)", "name": "kafka_server_$1_$2"}


def rule(**names: str) -> dict[str, Any]:
    """A rule of others: labels and the words of a bean's name, each of which takes as much as it can."""
    words = "".join(f", {word}=(.+)" for word in names.values())
    labels = {label: f"${number}" for number, label in enumerate(["resource", *names], 1)}
    pattern = f"kafka.server<type=(.+){words}><>([a-z-]+)"
    return {"pattern": pattern, "name": f"kafka_server_quota_${len(labels) + 1}", "labels": labels}


# jmx_exporter's examples have BOTH, USER, CLIENT_ID in this order; files of others have other orders.
BOTH, USER, CLIENT_ID = rule(user="user", clientId="client-id"), rule(user="user"), rule(clientId="client-id")

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


def charged(page: bytes) -> tuple[Page, dict[tuple[int, str, str], float]]:
    """What the meter reads, and the rates that it charges, by what is measured, user and client-id."""
    sensors = SensorTable("1")
    read = sensors.read(page)
    clients = [(measure, sensors.clients[client]) for measure, client in sensors.places.tolist()]
    keys = [(measure, client.user, client.client_id) for measure, client in clients]
    return read, dict(zip(keys, read.rates.tolist(), strict=True))


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
    read, found = charged(exported_page(TEXT, sensors, tmp_path))
    assert read.refused == 0, read.reason
    assert found == {
        **{(PRODUCED, "alice", name): rate for name, rate in rates.items()},
        **{(PRODUCED, "ANONYMOUS", name): rate + 100 for name, rate in rates.items()},
        (PRODUCED, "bob", "etl"): 200.0,
        (FETCHED, "CN=a b,O=*~", ""): 201.0,
        (REQUEST, "alice", ""): 2e7,
    }


@pytest.mark.parametrize(
    ("rules", "users", "fix"),
    [
        pytest.param([GENERAL, *FILE["rules"]], (), "deploy/prometheus/jmx-quotas.yml", id="a general rule first"),
        pytest.param([CLIENT_ID, BOTH, USER], ("bob",), QUOTA_PATTERNS["client_id",], id="the client-id first"),
        pytest.param([BOTH, USER, CLIENT_ID], ("alice", "bob"), QUOTA_PATTERNS["user", "client_id"], id="their order"),
    ],
)
def test_what_rules_of_others_cannot_tell_apart_is_refused_and_charged_to_no_client(
    rules: list[dict[str, Any]], users: tuple[str, ...], fix: str, tmp_path: Path
) -> None:
    sensors = [
        QuotaSensor("Produce", "byte-rate", 5.0, "alice", "etl"),
        QuotaSensor("Produce", "byte-rate", 6.0, "mallory", "x, user=bob, client-id=etl"),
        QuotaSensor("Produce", "byte-rate", 7.0, "mallory", "x, client-id=y"),
        QuotaSensor("Fetch", "byte-rate", 8.0, "bob", ""),
    ]
    read, found = charged(exported_page(yaml.safe_dump({**FILE, "rules": rules}), sensors, tmp_path))
    assert {key[1] for key in found} == set(users)
    assert found.keys() <= {(PRODUCED, "alice", "etl"), (FETCHED, "bob", "")}
    assert (read.shown, read.refused) == (len(users), 4 - len(users))
    assert fix in read.reason
