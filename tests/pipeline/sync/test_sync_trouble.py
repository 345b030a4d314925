"""Trouble of `kquota quotas sync` with real brokers: one line each on stderr, tried again or given up as fits."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from deploy.reporter.__main__ import compile_java
from pipeline.brokers.native import NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.demo.process import free_ports
from pipeline.jvm.jars import broker_classpath, fetch
from pipeline.tables.address import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from tests.broker_proxy import without_requests
from tests.pipeline.brokers.quota_broker import clear, user, values_in
from tests.pipeline.cli.running import kquota, new_tables
from tests.pipeline.sync.sync_process import SyncProcess, running_sync
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

RATE = "producer_byte_rate"
# A broker that was killed registers again when its former session has ended.
BACK_SOON = {"broker.session.timeout.ms": "1000"}


class Place:
    """A broker and tables of a test's own."""

    def __init__(self, broker: EmbeddedBroker, root: str) -> None:
        self.broker = broker
        self.root = root
        self.flags = ("--bootstrap-server", broker.bootstrap_servers, "--tables", root)

    def edit(self, bounds: Mapping[str, float]) -> None:
        changes = [QuotaChange(name, "", {RATE: bound}) for name, bound in bounds.items()]
        QuotaTable(self.root).alter(changes, local_audit("test"))

    def set_by_sql(self, name: str, bound: float) -> None:
        """Only SQL can store what Kafka refuses."""
        DeltaTable(table_uri(self.root, "quotas")).update({RATE: str(bound)}, predicate=f"user = '{name}'")

    def await_values(self, bounds: Mapping[str, float]) -> None:
        with NativeQuotas(ClusterAccess(self.broker.bootstrap_servers)) as native:
            wanted = {user(name): {RATE: bound} for name, bound in bounds.items()}
            wait_until(lambda: values_in(native) == wanted, "the quotas to be on the broker")


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One that says on its SASL listener that it is reached at another port, where only a test may listen."""
    fetch()
    plain, sasl, advertised = free_ports(3)
    addresses = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{advertised}"
    options = BrokerOptions(settings={**BACK_SOON, "advertised.listeners": addresses})
    ports = {"PLAINTEXT": plain, "SASL_PLAINTEXT": sasl}
    folder = tmp_path_factory.mktemp("broker")
    with EmbeddedBroker(folder, {"sync": "sync-secret"}, ports=ports, options=options) as broker:
        (folder / "advertised").write_text(str(advertised))
        yield broker


@pytest.fixture
def place(own_broker: EmbeddedBroker, tmp_path: Path) -> Place:
    """The broker has no quotas."""
    own_broker.start()
    with NativeQuotas(ClusterAccess(own_broker.bootstrap_servers)) as native:
        clear(native)
    return Place(own_broker, new_tables(tmp_path / "tables"))


def trouble(sync: SyncProcess) -> list[str]:
    """The lines that are not about the ordinary."""
    return [line for line in sync.log.splitlines() if " INFO " not in line]


def test_a_broker_that_is_restarted_is_waited_for_and_gets_what_was_edited_meanwhile(place: Place) -> None:
    place.edit({"alice": 1e6})
    with running_sync(*place.flags) as sync:
        place.await_values({"alice": 1e6})
        place.broker.kill()
        place.edit({"alice": 2e6, "bob": 1e6})
        sync.wait_for(" WARNING ")
        place.broker.start()
        place.await_values({"alice": 2e6, "bob": 1e6})
        sync.wait_for("works again after")
        assert sync.stop() == 0
        told = trouble(sync)
        assert len(told) == 1, told
        assert f"no Kafka broker answers at {place.broker.bootstrap_servers}" in told[0]
        assert "tried again with back-off until it works" in told[0]


def test_what_the_broker_refuses_is_told_once_and_holds_up_nothing_else(place: Place) -> None:
    place.edit({"alice": 1e6, "bob": 1e6})
    place.set_by_sql("bob", 0.5)
    with running_sync(*place.flags) as sync:
        place.await_values({"alice": 1e6})
        sync.wait_for("the brokers refuse")
        place.edit({"carol": 1e6})
        place.await_values({"alice": 1e6, "carol": 1e6})
        place.edit({"bob": 1.0})
        place.await_values({"alice": 1e6, "carol": 1e6, "bob": 1.0})
        assert sync.stop() == 0
        told = trouble(sync)
        assert len(told) == 1, told
        assert "user-principal 'bob' producer_byte_rate: the brokers refuse " in told[0]


@pytest.mark.parametrize(
    ("missing", "request_name"),
    [((48, 0, 1), "DescribeClientQuotas (API 48)"), ((49, 0, 1), "AlterClientQuotas (API 49)")],
)
def test_a_broker_that_is_too_old_ends_the_sync_in_one_line(
    place: Place, tmp_path: Path, missing: tuple[int, int, int], request_name: str
) -> None:
    place.edit({"alice": 1e6})
    sasl, advertised = place.broker.address("SASL_PLAINTEXT"), (place.broker.directory / "advertised").read_text()
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=sync\nsasl.password=sync-secret\n"
    )
    old = f"127.0.0.1:{advertised}"
    flags = ("--bootstrap-server", old, "--command-config", str(properties), "--tables", place.root)
    with without_requests(int(advertised), int(sasl.partition(":")[2]), [missing]), running_sync(*flags) as sync:
        assert sync.await_end() == 6
        told = trouble(sync)
        assert len(told) == 1, told
        assert told[0].startswith(f"kquota: the Kafka brokers at {old} do not know the request {request_name}")
    place.await_values({})


# Brokers that leave quotas to a class that is not Kafka's own.


@pytest.fixture(scope="module")
def two_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedBroker, EmbeddedBroker]]:
    """Two brokers of one cluster; the second one has such a class."""
    fetch()
    classes, folder = tmp_path_factory.mktemp("classes"), tmp_path_factory.mktemp("two")
    compile_java([Path(__file__).with_name("NoQuotas.java")], broker_classpath(), classes)
    settings = {**BACK_SOON, "client.quota.callback.class": "NoQuotas"}
    first = EmbeddedBroker(folder / "1", options=BrokerOptions(settings=BACK_SOON))
    options = BrokerOptions(settings=settings, jars=(*broker_classpath(), classes))
    with first, EmbeddedBroker(folder / "2", options=options, joins=first, node_id=2) as second:
        yield first, second


PLUGGED = "Kafka's own quotas, which kquota writes, are off where another class decides (client.quota.callback.class): "


def test_brokers_that_do_not_use_kafkas_own_quotas_are_named_and_get_none(
    two_brokers: tuple[EmbeddedBroker, EmbeddedBroker], tmp_path: Path
) -> None:
    first, second = two_brokers
    second.start()
    place = Place(first, new_tables(tmp_path / "tables"))
    place.edit({"alice": 1e6})
    for command in ("quotas sync --once", "quotas sync --dry-run", "quotas diff --brokers", "meter enable --yes"):
        refused = kquota(*command.split(), *place.flags)
        assert (refused.exit_code, refused.stdout) == (5, ""), command
        assert f"{PLUGGED}NoQuotas on broker 2" in refused.stderr
        assert "Fix: take client.quota.callback.class out of the configuration of these brokers" in refused.stderr
    place.await_values({})
    assert f"{PLUGGED}NoQuotas on broker 2" in kquota("meter", "status", *place.flags[:2]).stderr
    assert kquota("meter", "disable", *place.flags).exit_code == 0
    assert f"warn  sync      {PLUGGED}NoQuotas on broker 2" in kquota("doctor", *place.flags).stdout


def test_a_sync_ends_when_a_broker_comes_back_without_kafkas_own_quotas(
    two_brokers: tuple[EmbeddedBroker, EmbeddedBroker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_brokers
    second.stop()
    place = Place(first, new_tables(tmp_path / "tables"))
    place.edit({"alice": 1e6})
    monkeypatch.setenv("KQUOTA_SYNC__DESCRIBE_EVERY_MS", "1000")
    with running_sync(*place.flags) as sync:
        place.await_values({"alice": 1e6})
        second.start()
        assert sync.await_end() == 5
        told = trouble(sync)
        assert len(told) == 1, told
        assert told[0].startswith(f"kquota: {PLUGGED}NoQuotas on broker 2. Fix: ")
    assert f"ERROR sync      {PLUGGED}NoQuotas on broker 2" in kquota("doctor", *place.flags).stdout
    with NativeQuotas(ClusterAccess(first.bootstrap_servers)) as native:
        clear(native)
