"""The real jmx_exporter in a real broker: the names and rates that the meter reads of its page."""

import re
from pathlib import Path

import httpx
import pytest

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.demo import process
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.meter.scrapes import PRODUCED, REQUEST, NameMap, SensorTable
from schemas.names import USAGE_TOPIC
from tests.deploy.commands import DEPLOY
from tests.pipeline.meter.jmx_exporter import agent_option
from tests.pipeline.meter.reported_broker import DATA, HUGE_QUOTA, USERS, logged, make_topics, produce
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [
    *(pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)),
    pytest.mark.usefixtures("made_reporter"),
]

OURS = (DEPLOY / "prometheus" / "jmx-quotas.yml").read_text("utf-8")
NONE = OURS.partition("rules:")[0]
IN_A_BEAN = "kafka.server<type=Produce, user=bob, client-id=etl><>byte-rate"
CLIENT_IDS = ["etl", '"etl"', 'a,"b"', "x=y, user=mallory", IN_A_BEAN, "a\nb\r", "100%", "*?", "é€😀", "a}b{c} 5"]
SHORTEST_SECONDS, LONGEST_SECONDS = 10, 12
"""The window of a rate, whose samples are of one second."""


class Exported:
    """What the page of a broker shows, by user, client-id and measure."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}/metrics"
        self._sensors = SensorTable("1", NameMap())

    def page(self) -> bytes:
        return httpx.get(self._address, timeout=PATIENCE_SECONDS).content

    def rates(self) -> dict[tuple[str, str, int], float]:
        """Those above 0, now."""
        page = self._sensors.read(self.page())
        assert page.refused == 0, page.reason
        sensors = zip(self._sensors.places.tolist(), page.rates.tolist(), strict=True)
        named = [(self._sensors.clients[client], measure, rate) for (measure, client), rate in sensors]
        return {(client.user, client.client_id, measure): rate for client, measure, rate in named if rate}


@pytest.mark.parametrize("rules", [OURS, NONE], ids=["our rules", "no rules"])
def test_its_names_are_those_of_the_request_log_and_its_rates_are_of_the_same_bytes(tmp_path: Path, rules: str) -> None:
    (port,) = process.free_ports(1)
    file = tmp_path / "rules.yml"
    file.write_text(rules, "utf-8")
    settings = {"metrics.jmx.include": "(?s).*"}  # else a client-id with a line end has no bean
    options = BrokerOptions(
        request_log=True, settings=settings, java_options=(agent_option(port, file),), usage_topic=USAGE_TOPIC
    )
    with EmbeddedBroker(tmp_path / "broker", USERS, options=options) as broker:
        make_topics(broker, DATA, USAGE_TOPIC)
        with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as quotas:
            assert not quotas.alter({NativeEntity.of_row("<default>", "<default>"): HUGE_QUOTA})
        exported = Exported(port)
        tries = iter(range(100))

        def is_equal() -> bool:
            """On a machine so slow that the window is over by then, clients with other names are tried."""
            number = next(tries)
            wanted = {(user, f"{name}{number}") for user in USERS for name in CLIENT_IDS}
            for user, client_id in sorted(wanted):
                produce(broker, user, client_id, [20_000 + len(client_id)])
            rates, sent = exported.rates(), logged(broker)
            assert wanted <= {key[:2] for key in sent}
            return all(
                sent[*one, "produced_bytes"] / LONGEST_SECONDS
                <= rates.get((*one, PRODUCED), 0)
                <= sent[*one, "produced_bytes"] / SHORTEST_SECONDS
                and (*one, REQUEST) in rates
                for one in wanted
            )

        wait_until(is_equal, "the rates of all clients")
        counts = re.findall(r"^kquota_reporter_(\w+) (\S+)$", exported.page().decode(), re.MULTILINE)
        found = {name.replace("_", "").lower(): float(count) for name, count in counts}
        assert found.pop("sensors") > found.pop("clients") > 0
        assert found == {"summedsensors": 0, "unreadablesensors": 0, "lostevents": 0}
