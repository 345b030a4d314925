"""The rules for jmx_exporter, in the real one: what the meter reads of the beans of Kafka's own JmxReporter."""

from pathlib import Path

from pipeline.meter.scrapes import FETCHED, PRODUCED, REQUEST, SensorTable
from tests.deploy.commands import DEPLOY
from tests.pipeline.meter.jmx_exporter import QuotaSensor, exported_page

TEXT = (DEPLOY / "prometheus" / "jmx-quotas.yml").read_text("utf-8")
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
    table = SensorTable("1")
    read = table.read(exported_page(TEXT, sensors, tmp_path))
    assert read.refused == 0, read.reason
    clients = [(measure, table.clients[client]) for measure, client in table.places.tolist()]
    keys = [(measure, client.user, client.client_id) for measure, client in clients]
    assert dict(zip(keys, read.rates.tolist(), strict=True)) == {
        **{(PRODUCED, "alice", name): rate for name, rate in rates.items()},
        **{(PRODUCED, "ANONYMOUS", name): rate + 100 for name, rate in rates.items()},
        (PRODUCED, "bob", "etl"): 200.0,
        (FETCHED, "CN=a b,O=*~", ""): 201.0,
        (REQUEST, "alice", ""): 2e7,
    }
