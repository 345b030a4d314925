"""`kquota quotas sync` on real brokers: what it changes and leaves alone, trouble, kills."""

import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from deploy.reporter.__main__ import compile_java
from pipeline.brokers.native import Look, NativeEntity, NativeQuotas
from pipeline.brokers.running import run_sync, sync_findings
from pipeline.clock import wall_ms
from pipeline.cluster.connecting import ClusterAccess
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.jvm.jars import broker_classpath, fetch
from pipeline.settings.model import KafkaSettings, Settings, TablesSettings
from pipeline.tables.queries import read_table
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from tests.metrics_reading import metrics_named_in
from tests.pipeline.brokers.quota_broker import clear, user, values_in
from tests.pipeline.cli.running import Answer, kquota, new_tables
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row
from tests.waiting import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from pipeline.demo.broker import EmbeddedBroker


class SyncProcess:
    """One that runs; its log is kept."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def wait_for(self, text: str) -> None:
        """Wait until it has logged a text."""
        wait_until(lambda: text in self.log or self._process.poll() is not None, f"{text!r} in {self.log}")
        assert text in self.log

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def stop(self) -> int:
        """Ask it to stop; returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.await_end()

    def await_end(self) -> int:
        """Wait until it has ended by itself; returns the exit code."""
        return self._process.wait(PATIENCE_SECONDS)


@contextmanager
def running_sync(*flags: str) -> Iterator[SyncProcess]:
    """Start it; it is killed with the block, if it still runs."""
    command = [sys.executable, "-m", "pipeline.cli.main", "quotas", "sync", *flags]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield SyncProcess(process, log)
        finally:
            process.kill()


RATE = "producer_byte_rate"
PREFIX = "sync-"


class Place:
    """Tables of their own and the shared broker, of which only entities named `sync-…` are touched."""

    def __init__(self, root: str, broker: "EmbeddedBroker", native: NativeQuotas) -> None:
        self.root = root
        self.native = native
        self.flags = ("--bootstrap-server", broker.bootstrap_servers, "--tables", root)
        self.quotas = QuotaTable(root)
        self._settings = Settings(
            kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers), tables=TablesSettings(root=root)
        )

    def edit(self, bounds: Mapping[str, float | None]) -> None:
        changes = [QuotaChange(user, "", {RATE: bound}) for user, bound in bounds.items()]
        self.quotas.alter(changes, local_audit("test"))

    def write(self, user: str, value: float | None) -> None:
        """As somebody else would."""
        assert self.native.alter({NativeEntity.of_row(user, ""): {RATE: value}}) == []
        wait_until(lambda: self.held().get(user) == value, "the broker to hear of it")

    def held(self) -> dict[str, float]:
        """What the broker has for each user of these tests."""
        named = ((quota.entity.row_names(), quota.values) for quota in self.native.describe())
        return {names[0]: values[RATE] for names, values in named if names and names[0].startswith(PREFIX)}

    def run(self, *arguments: str) -> Answer:
        return kquota("quotas", *arguments, *self.flags)

    def sync(self, *, adopt: bool = False) -> None:
        """One period of a sync."""
        run_sync(self._settings, lambda _: True, adopt=adopt)

    def differences(self) -> list[tuple[str, str, float | None, float | None]]:
        answer = self.run("sync", "--dry-run", "-o", "json")
        assert answer.exit_code == 0, answer.stderr
        rows = json.loads(answer.stdout)["changes"]
        return [(row["action"], row["user"], row["old"], row["new"]) for row in rows]


@pytest.fixture
def place(tmp_path: Path, broker: "EmbeddedBroker") -> Iterator[Place]:
    with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as native:
        place = Place(new_tables(tmp_path / "tables"), broker, native)
        yield place
        native.alter({NativeEntity.of_row(user, ""): {RATE: None} for user in place.held()})
        wait_until(lambda: not place.held(), "the broker to hear of it")


@pytest.mark.broker
def test_an_edit_reaches_the_broker_and_a_second_sync_of_the_tables_is_refused(place: Place) -> None:
    place.write("sync-foreign", 5e6)
    place.edit({"sync-a": 1e6})
    with running_sync(*place.flags, "--metrics-port", "0") as sync:
        wait_until(lambda: place.held().get("sync-a") == 1e6, "the first sync")
        wait_until(lambda: "kquota_sync_owned_values 1.0" in metrics_named_in(sync.log), "the metrics to tell of it")
        place.edit({"sync-a": 3e6})
        wait_until(lambda: place.held().get("sync-a") == 3e6, "the edit to be on the broker")
        assert json.loads(kquota("status", "--tables", place.root, "-o", "json").stdout)["sync_process"]
        second = place.run("sync")
        assert second.exit_code == 4
        assert "another sync of these tables runs" in second.stderr
        kquota("mode", "shadow", "--tables", place.root)
        wait_until(lambda: place.held() == {"sync-foreign": 5e6}, "shadow mode to give back what there was")
        assert sync.stop() == 0
        assert "producer_byte_rate 1.0 MB/s → 3.0 MB/s: the quota table was edited" in sync.log
        assert " ERROR " not in sync.log
    assert "sync    none on this machine" in kquota("status", "--tables", place.root).stdout
    stored = read_table(f"{place.root}/broker_quotas", ["user", "new", "result", "seq"]).to_pylist()
    steps = [(row["new"], row["result"]) for row in sorted(stored, key=lambda row: int(row["seq"]))]
    assert steps == [(value, result) for value in (1e6, 3e6, None) for result in ("pending", "applied")]


@pytest.mark.broker
def test_drift_is_shown_everywhere_and_kept_until_it_is_adopted(place: Place) -> None:
    place.edit({"sync-a": 1e6, "sync-b": 1e6})
    place.write("sync-b", 7e6)
    assert place.differences() == [("add", "sync-a", None, 1e6), ("leave", "sync-b", 7e6, 1e6)]
    assert place.held() == {"sync-b": 7e6}
    place.sync()
    wait_until(lambda: place.held() == {"sync-a": 1e6, "sync-b": 7e6}, "the broker to hear of it")
    doctor = kquota("doctor", *place.flags).stdout
    assert "warn  sync      does not run on this machine, last change" in doctor
    assert "user-principal 'sync-b' producer_byte_rate is 7.0 MB/s on the brokers: kquota did not write it" in doctor
    shown = kquota("quotas", "effective", "sync-a", "etl", "--tables", place.root)
    assert "producer_byte_rate: 1.0 MB/s on each broker, for user-principal 'sync-a', since " in shown.stderr
    document = json.loads(kquota("quotas", "effective", "sync-a", "--tables", place.root, "-o", "json").stdout)
    assert [(row["value"], row["cause"]) for row in document[0]["on_brokers"]] == [(1e6, "added")]
    place.sync(adopt=True)
    wait_until(lambda: place.held() == {"sync-a": 1e6, "sync-b": 1e6}, "the broker to hear of it")
    assert place.differences() == []
    place.edit({"sync-b": None})
    place.sync()
    wait_until(lambda: place.held() == {"sync-a": 1e6, "sync-b": 7e6}, "what stood there to be given back")


@pytest.mark.broker
def test_the_story_of_a_throttle_has_what_the_broker_itself_enforces_now(place: Place) -> None:
    job = KeptJob(place.root, QuotaChange("sync-a", "", {RATE: 1_000.0}))
    for _ in range(3):
        job.clock.advance(500)
        job.batch([usage_row(job.clock.wall_ms, user="sync-a", client_id="etl", produced_bytes=50_000)])
    job.flush()
    story = ("throttles", "explain", "sync-a", "etl", "--tables", place.root)
    assert "  brokers " not in kquota(*story).stdout
    place.sync()
    wait_until(lambda: place.held() == {"sync-a": 1_000.0}, "the broker to hear of it")
    shown = kquota(*story).stdout
    assert "  brokers   1.0 kB/s on each broker, for user-principal 'sync-a', since " in shown
    assert "UTC: the quota table asks for it" in shown
    document = json.loads(kquota(*story, "-o", "json").stdout)
    on_brokers = [(one["user"], one["client_id"], one["value"]) for one in document[0]["on_brokers"]]
    assert on_brokers == [("sync-a", "", place.held()["sync-a"])]


@pytest.mark.broker
def test_after_five_kills_at_random_moments_the_broker_has_what_a_fresh_sync_wants(place: Place) -> None:
    chance = random.Random(18)
    place.write("sync-foreign", 5e6)
    users = [f"sync-{number}" for number in range(40)]
    for _ in range(5):
        with running_sync(*place.flags) as sync:
            sync.wait_for("values that are kquota's")
            for _ in range(chance.randrange(25)):
                place.edit({user: chance.choice([None, 1e6, 2e6, 3e6]) for user in chance.sample(users, 10)})
            sync.kill()
    place.sync()
    wanted = {row["user"]: row[RATE] for row in place.quotas.read().rows if row[RATE] is not None}
    wait_until(lambda: place.held() == {**wanted, "sync-foreign": 5e6}, "the broker to hear of it")
    assert place.differences() == []
    place.edit(dict.fromkeys(users))
    place.sync()
    wait_until(lambda: place.held() == {"sync-foreign": 5e6}, "everything that was kquota's to go")


# A broker that was killed registers again when its former session has ended.
BACK_SOON = {"broker.session.timeout.ms": "1000"}


class OwnPlace:
    """A broker and tables of a test's own."""

    def __init__(self, broker: EmbeddedBroker, root: str) -> None:
        self.broker = broker
        self.root = root
        self.flags = ("--bootstrap-server", broker.bootstrap_servers, "--tables", root)

    def edit(self, bounds: Mapping[str, float]) -> None:
        changes = [QuotaChange(name, "", {RATE: bound}) for name, bound in bounds.items()]
        QuotaTable(self.root).alter(changes, local_audit("test"))

    def await_values(self, bounds: Mapping[str, float]) -> None:
        with NativeQuotas(ClusterAccess(self.broker.bootstrap_servers)) as native:
            wanted = {user(name): {RATE: bound} for name, bound in bounds.items()}
            wait_until(lambda: values_in(native) == wanted, "the quotas to be on the broker")


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One that a test may kill."""
    fetch()
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=BrokerOptions(settings=BACK_SOON)) as broker:
        yield broker


@pytest.fixture
def own_place(own_broker: EmbeddedBroker, tmp_path: Path) -> OwnPlace:
    """The broker has no quotas."""
    own_broker.start()
    with NativeQuotas(ClusterAccess(own_broker.bootstrap_servers)) as native:
        clear(native)
    return OwnPlace(own_broker, new_tables(tmp_path / "tables"))


def trouble(sync: SyncProcess) -> list[str]:
    """The lines that are not about the ordinary."""
    return [line for line in sync.log.splitlines() if " INFO " not in line]


@pytest.mark.broker
def test_a_broker_that_is_restarted_is_waited_for_and_gets_what_was_edited_meanwhile(own_place: OwnPlace) -> None:
    own_place.edit({"alice": 1e6})
    with running_sync(*own_place.flags) as sync:
        own_place.await_values({"alice": 1e6})
        own_place.broker.kill()
        own_place.edit({"alice": 2e6, "bob": 1e6})
        sync.wait_for(" WARNING ")
        own_place.broker.start()
        own_place.await_values({"alice": 2e6, "bob": 1e6})
        sync.wait_for("works again after")
        assert sync.stop() == 0
        told = trouble(sync)
        assert len(told) == 1, told
        assert f"no Kafka broker answers at {own_place.broker.bootstrap_servers}" in told[0]
        assert "tried again with back-off until it works" in told[0]


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


@pytest.mark.broker
def test_brokers_that_do_not_use_kafkas_own_quotas_are_named_and_get_none(
    two_brokers: tuple[EmbeddedBroker, EmbeddedBroker], tmp_path: Path
) -> None:
    first, second = two_brokers
    second.start()
    own_place = OwnPlace(first, new_tables(tmp_path / "tables"))
    own_place.edit({"alice": 1e6})
    for command in ("quotas sync", "quotas sync --dry-run", "meter enable --yes"):
        refused = kquota(*command.split(), *own_place.flags)
        assert (refused.exit_code, refused.stdout) == (5, ""), command
        assert f"{PLUGGED}NoQuotas on broker 2" in refused.stderr
        assert "Fix: take client.quota.callback.class out of the configuration of these brokers" in refused.stderr
    own_place.await_values({})
    assert f"{PLUGGED}NoQuotas on broker 2" in kquota("meter", "status", *own_place.flags[:2]).stderr
    assert kquota("meter", "disable", *own_place.flags).exit_code == 0
    assert f"warn  sync      {PLUGGED}NoQuotas on broker 2" in kquota("doctor", *own_place.flags).stdout


NAME = "sync-beside"


@pytest.fixture
def beside_root(tmp_path: Path) -> str:
    root = new_tables(tmp_path / "tables")
    QuotaTable(root).alter([QuotaChange(NAME, "", {RATE: 1e6})], local_audit("test"))
    return root


@pytest.fixture
def beside_settings(broker: EmbeddedBroker, beside_root: str) -> Iterator[Settings]:
    yield Settings(
        kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers), tables=TablesSettings(root=beside_root)
    )
    with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as native:
        native.alter({user(NAME): {RATE: None}})
        wait_until(lambda: user(NAME) not in values_in(native), "the broker to hear of it")


@pytest.mark.broker
def test_doctor_takes_no_value_that_a_sync_writes_meanwhile_for_one_that_others_wrote(
    beside_settings: Settings, beside_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sync(beside_settings, lambda _: True)
    look = NativeQuotas.look

    def look_late(brokers: NativeQuotas) -> Look:
        monkeypatch.setattr(NativeQuotas, "look", look)
        QuotaTable(beside_root).alter([QuotaChange(NAME, "", {RATE: 2e6})], local_audit("test"))
        run_sync(beside_settings, lambda _: True)
        return look(brokers)

    monkeypatch.setattr(NativeQuotas, "look", look_late)
    owned, *others = (text for _, text in sync_findings(beside_settings, wall_ms()))
    assert "values that are kquota's on the brokers" in owned
    assert others == []
