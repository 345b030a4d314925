"""`kquota quotas sync` on a real broker: what it changes, what it leaves alone, and what a kill leaves."""

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from pipeline.tables.reading import read_table
from tests.metrics_reading import metrics_named_in
from tests.pipeline.cli.running import Answer, kquota, new_tables
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.sync.sync_process import running_sync
from tests.quota.factories import usage_row
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pipeline.demo.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

RATE = "producer_byte_rate"
PREFIX = "sync-"


class Place:
    """Tables of their own and the shared broker, of which only entities named `sync-…` are touched."""

    def __init__(self, root: str, broker: "EmbeddedBroker", native: NativeQuotas) -> None:
        self.root = root
        self.native = native
        self.flags = ("--bootstrap-server", broker.bootstrap_servers, "--tables", root)
        self.quotas = QuotaTable(root)

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

    def differences(self) -> list[tuple[str, str, float | None, float | None]]:
        answer = self.run("diff", "--brokers", "-o", "json")
        assert answer.exit_code == 0, answer.stderr
        return [(row["action"], row["user"], row["old"], row["new"]) for row in json.loads(answer.stdout)]


@pytest.fixture
def place(tmp_path: Path, broker: "EmbeddedBroker") -> Iterator[Place]:
    with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as native:
        place = Place(new_tables(tmp_path / "tables"), broker, native)
        yield place
        native.alter({NativeEntity.of_row(user, ""): {RATE: None} for user in place.held()})
        wait_until(lambda: not place.held(), "the broker to hear of it")


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


def test_drift_is_shown_everywhere_and_kept_until_it_is_adopted(place: Place) -> None:
    place.edit({"sync-a": 1e6, "sync-b": 1e6})
    place.write("sync-b", 7e6)
    assert place.differences() == [("add", "sync-a", None, 1e6), ("leave", "sync-b", 7e6, 1e6)]
    dry = place.run("sync", "--dry-run", "-o", "json")
    assert [row["action"] for row in json.loads(dry.stdout)["changes"]] == ["add", "leave"]
    assert place.held() == {"sync-b": 7e6}
    assert place.run("sync", "--once").exit_code == 0
    wait_until(lambda: place.held() == {"sync-a": 1e6, "sync-b": 7e6}, "the broker to hear of it")
    doctor = kquota("doctor", *place.flags).stdout
    assert "warn  sync      does not run on this machine, last change" in doctor
    assert "user-principal 'sync-b' producer_byte_rate is 7.0 MB/s on the brokers: kquota did not write it" in doctor
    shown = kquota("quotas", "effective", "sync-a", "etl", "--tables", place.root)
    assert "producer_byte_rate: 1.0 MB/s on each broker, for user-principal 'sync-a', since " in shown.stderr
    document = json.loads(kquota("quotas", "effective", "sync-a", "--tables", place.root, "-o", "json").stdout)
    assert [(row["value"], row["cause"]) for row in document[0]["on_brokers"]] == [(1e6, "added")]
    assert place.run("sync", "--once", "--adopt").exit_code == 0
    wait_until(lambda: place.held() == {"sync-a": 1e6, "sync-b": 1e6}, "the broker to hear of it")
    assert place.differences() == []
    place.edit({"sync-b": None})
    assert place.run("sync", "--once").exit_code == 0
    wait_until(lambda: place.held() == {"sync-a": 1e6, "sync-b": 7e6}, "what stood there to be given back")


def test_the_story_of_a_throttle_has_what_the_broker_itself_enforces_now(place: Place) -> None:
    job = KeptJob(place.root, QuotaChange("sync-a", "", {RATE: 1_000.0}))
    for _ in range(3):
        job.clock.advance(500)
        job.batch([usage_row(job.clock.wall_ms, user="sync-a", client_id="etl", produced_bytes=50_000)])
    job.flush()
    story = ("throttles", "explain", "sync-a", "etl", "--tables", place.root)
    assert "  brokers " not in kquota(*story).stdout
    assert place.run("sync", "--once").exit_code == 0
    wait_until(lambda: place.held() == {"sync-a": 1_000.0}, "the broker to hear of it")
    shown = kquota(*story).stdout
    assert "  brokers   1.0 kB/s on each broker, for user-principal 'sync-a', since " in shown
    assert "UTC: the quota table asks for it" in shown
    document = json.loads(kquota(*story, "-o", "json").stdout)
    on_brokers = [(one["user"], one["client_id"], one["value"]) for one in document[0]["on_brokers"]]
    assert on_brokers == [("sync-a", "", place.held()["sync-a"])]


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
    assert place.run("sync", "--once").exit_code == 0
    wanted = {row["user"]: row[RATE] for row in place.quotas.read().rows if row[RATE] is not None}
    wait_until(lambda: place.held() == {**wanted, "sync-foreign": 5e6}, "the broker to hear of it")
    assert place.differences() == []
    place.edit(dict.fromkeys(users))
    assert place.run("sync", "--once").exit_code == 0
    wait_until(lambda: place.held() == {"sync-foreign": 5e6}, "everything that was kquota's to go")
