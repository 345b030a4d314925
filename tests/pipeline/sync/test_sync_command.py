"""`kquota quotas sync` on real brokers: what it changes and leaves alone, trouble, kills."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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
from tests.pipeline.cli.running import kquota, new_tables
from tests.waiting import PATIENCE_SECONDS, wait_until

RATE = "producer_byte_rate"
PREFIX = "sync-"


class Place:
    """Tables of their own and a broker, of which only entities named `sync-…` are touched."""

    def __init__(self, broker: EmbeddedBroker, root: str) -> None:
        self.root, self.log = root, Path(root).with_name("sync.log")
        self.flags = ("--bootstrap-server", broker.bootstrap_servers, "--tables", root)
        self.access = ClusterAccess(broker.bootstrap_servers)
        kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
        self.settings = Settings(kafka=kafka, tables=TablesSettings(root=root))

    def edit(self, bounds: Mapping[str, float | None]) -> None:
        changes = [QuotaChange(user, "", {RATE: bound}) for user, bound in bounds.items()]
        QuotaTable(self.root).alter(changes, local_audit("test"))

    def write(self, values: Mapping[str, float | None]) -> None:
        """As somebody else would."""
        with NativeQuotas(self.access) as native:
            assert native.alter({NativeEntity.of_row(user, ""): {RATE: value} for user, value in values.items()}) == []

    def await_held(self, values: Mapping[str, float]) -> None:
        """Until the broker has this for the users of these tests."""
        with NativeQuotas(self.access) as native:
            wait_until(lambda: held_in(native) == values, f"the broker to have {values}")

    def sync(self, *, adopt: bool = False) -> None:
        """One period of a sync."""
        run_sync(self.settings, lambda _: True, adopt=adopt)

    @contextmanager
    def running_sync(self, *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Start it, with a log; it is killed with the block, if it still runs."""
        command = [sys.executable, "-m", "pipeline.cli.main", "quotas", "sync", *self.flags, *flags]
        with self.log.open("wb") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                yield process
            finally:
                process.kill()

    def await_log(self, text: str) -> None:
        wait_until(lambda: text in self.log.read_text(), f"{text!r} in the log of the sync")

    def differences(self) -> list[tuple[str, str, float | None, float | None]]:
        answer = kquota("quotas", "sync", *self.flags, "--dry-run", "-o", "json")
        assert answer.exit_code == 0, answer.stderr
        rows = json.loads(answer.stdout)["changes"]
        return [(row["action"], row["user"], row["old"], row["new"]) for row in rows]


def held_in(native: NativeQuotas) -> dict[str, float]:
    named = ((quota.entity.row_names(), quota.values) for quota in native.describe())
    return {names[0]: values[RATE] for names, values in named if names and names[0].startswith(PREFIX)}


@pytest.fixture
def place(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[Place]:
    place = Place(broker, new_tables(tmp_path / "tables"))
    yield place
    with NativeQuotas(place.access) as native:
        place.write(dict.fromkeys(held_in(native)))
    place.await_held({})


@pytest.mark.broker
def test_an_edit_reaches_the_broker_and_a_second_sync_of_the_tables_is_refused(place: Place) -> None:
    place.write({"sync-foreign": 5e6})
    place.edit({"sync-a": 1e6})
    with place.running_sync("--metrics-port", "0") as sync:
        place.await_held({"sync-a": 1e6, "sync-foreign": 5e6})
        wait_until(
            lambda: "kquota_sync_owned_values 1.0" in metrics_named_in(place.log.read_text()),
            "the metrics to tell of it",
        )
        place.edit({"sync-a": 3e6})
        place.await_held({"sync-a": 3e6, "sync-foreign": 5e6})
        assert json.loads(kquota("status", "--tables", place.root, "-o", "json").stdout)["sync_process"]
        assert kquota("quotas", "sync", *place.flags).exit_code == 4
        kquota("mode", "shadow", "--tables", place.root)
        place.await_held({"sync-foreign": 5e6})
        sync.terminate()
        assert sync.wait(PATIENCE_SECONDS) == 0
    assert " ERROR " not in place.log.read_text()
    assert not json.loads(kquota("status", "--tables", place.root, "-o", "json").stdout)["sync_process"]
    stored = read_table(f"{place.root}/broker_quotas", ["user", "new", "result", "seq"]).to_pylist()
    steps = [(row["new"], row["result"]) for row in sorted(stored, key=lambda row: int(row["seq"]))]
    assert steps == [(value, result) for value in (1e6, 3e6, None) for result in ("pending", "applied")]


@pytest.mark.broker
def test_drift_is_shown_and_kept_until_it_is_adopted(place: Place) -> None:
    place.edit({"sync-a": 1e6, "sync-b": 1e6})
    place.write({"sync-b": 7e6})
    place.await_held({"sync-b": 7e6})
    assert place.differences() == [("add", "sync-a", None, 1e6), ("leave", "sync-b", 7e6, 1e6)]
    place.sync()
    place.await_held({"sync-a": 1e6, "sync-b": 7e6})
    doctor = kquota("doctor", *place.flags).stdout
    assert "warn  sync      does not run on this machine, last change" in doctor
    assert "user-principal 'sync-b' producer_byte_rate is 7.0 MB/s on the brokers: kquota did not write it" in doctor
    place.sync(adopt=True)
    place.await_held({"sync-a": 1e6, "sync-b": 1e6})
    assert place.differences() == []
    place.edit({"sync-b": None})
    place.sync()
    place.await_held({"sync-a": 1e6, "sync-b": 7e6})  # what stood there is given back


@pytest.mark.broker
def test_after_kills_at_random_moments_the_broker_has_what_a_fresh_sync_wants(place: Place) -> None:
    chance = random.Random(18)
    place.write({"sync-foreign": 5e6})
    users = [f"sync-{number}" for number in range(40)]
    for _ in range(3):
        with place.running_sync():  # it is killed at the end
            place.await_log("values that are kquota's")
            for _ in range(chance.randrange(25)):
                place.edit({user: chance.choice([None, 1e6, 2e6, 3e6]) for user in chance.sample(users, 10)})
    place.sync()
    rows = QuotaTable(place.root).read().rows
    place.await_held({"sync-foreign": 5e6, **{row["user"]: row[RATE] for row in rows if row[RATE] is not None}})
    assert place.differences() == []
    place.edit(dict.fromkeys(users))
    place.sync()
    place.await_held({"sync-foreign": 5e6})


@pytest.mark.broker
def test_doctor_takes_no_value_of_a_sync_for_one_of_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.edit({"sync-beside": 1e6})
    place.sync()
    look = NativeQuotas.look

    def look_late(brokers: NativeQuotas) -> Look:
        monkeypatch.setattr(NativeQuotas, "look", look)
        place.edit({"sync-beside": 2e6})
        place.sync()
        return look(brokers)

    monkeypatch.setattr(NativeQuotas, "look", look_late)
    owned, *others = (text for _, text in sync_findings(place.settings, wall_ms()))
    assert "values that are kquota's on the brokers" in owned
    assert others == []


@pytest.fixture(scope="module")
def first_of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Of two brokers of one cluster; at the second one another class than Kafka's own decides on quotas."""
    fetch()
    classes, folder = tmp_path_factory.mktemp("classes"), tmp_path_factory.mktemp("two")
    compile_java([Path(__file__).with_name("NoQuotas.java")], broker_classpath(), classes)
    settings = {"client.quota.callback.class": "NoQuotas"}
    options = BrokerOptions(settings=settings, jars=(*broker_classpath(), classes))
    with EmbeddedBroker(folder / "1") as first, EmbeddedBroker(folder / "2", options=options, joins=first, node_id=2):
        yield first


PLUGGED = "Kafka's own quotas, which kquota writes, are off where another class decides (client.quota.callback.class): "


@pytest.mark.broker
@pytest.mark.long
def test_brokers_without_kafkas_own_quotas_are_named_and_get_none(first_of_two: EmbeddedBroker, tmp_path: Path) -> None:
    place = Place(first_of_two, new_tables(tmp_path / "tables"))
    place.edit({"sync-a": 1e6})
    for command in ("quotas sync", "quotas sync --dry-run", "meter enable --yes"):
        refused = kquota(*command.split(), *place.flags)
        assert (refused.exit_code, refused.stdout) == (5, ""), command
        assert f"{PLUGGED}NoQuotas on broker 2" in refused.stderr
    place.await_held({})
    assert f"{PLUGGED}NoQuotas on broker 2" in kquota("meter", "status", *place.flags[:2]).stderr
    assert kquota("meter", "disable", *place.flags).exit_code == 0
    assert f"warn  sync      {PLUGGED}NoQuotas on broker 2" in kquota("doctor", *place.flags).stdout
