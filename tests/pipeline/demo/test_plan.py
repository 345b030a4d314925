"""The demo's clients fit their quotas, their broker and each other."""

import stat
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.demo.folder import DEMO_CLIENTS, DEMO_QUOTAS, STOCK_CLIENTS, DemoPlan, demo_users, split_shares

CLIENTS = (*DEMO_CLIENTS, *STOCK_CLIENTS)
PASSWORDS = {user: f"{user}-secret" for user in demo_users()}


def test_every_read_topic_is_written_faster_than_it_is_read() -> None:
    for reader in (client for client in DEMO_CLIENTS if client.role == "consume"):
        written = sum(
            client.bytes_per_second
            for client in DEMO_CLIENTS
            if client.role == "produce" and client.topic == reader.topic and client.load_factor <= 1
        )
        assert written > reader.bytes_per_second


@pytest.mark.parametrize(("brokers", "shares"), [(1, (1.0,)), (2, (0.9, 0.1)), (3, (0.9, 0.05, 0.05))])
def test_nine_tenths_go_to_the_first_of_several_brokers(brokers: int, shares: tuple[float, ...]) -> None:
    assert split_shares(brokers) == shares


def test_each_client_resolves_to_the_quota_it_is_said_to_have() -> None:
    engine_module = pytest.importorskip("quota.engine")
    snapshot_module = pytest.importorskip("quota.snapshot")
    engine = engine_module.QuotaEngine()
    engine.load_quotas(snapshot_module.QuotaSnapshot.from_rows([dict(row) for row in DEMO_QUOTAS], version=1))
    entities = pa.table({
        "broker_id": ["" for _ in CLIENTS],
        "user": [client.user for client in CLIENTS],
        "client_id": [client.client_id for client in CLIENTS],
    })  # fmt: skip

    levels = engine.resolve(entities).to_pylist()

    resolved = {(row["user"], row["client_id"], row["quota_type"]): row for row in levels}
    rate_of = {"produce": "producer_byte_rate", "consume": "consumer_byte_rate"}
    rows = [resolved[client.user, client.client_id, rate_of[client.role]] for client in CLIENTS]
    assert [row["bound"] for row in rows] == [client.quota_bytes_per_second for client in CLIENTS]
    assert {row["level"] for row in rows} == {1, 2, 3, 4, 6, 7}


def test_a_plan_comes_back_as_it_was_written_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    plan = DemoPlan("127.0.0.1:2", "127.0.0.1:1", PASSWORDS, cluster="c")
    path = tmp_path / "plan.json"

    plan.write(path)

    assert DemoPlan.read(path) == plan
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_plan_without_a_password_is_refused() -> None:
    with pytest.raises(ValueError, match="users without a password: alice"):
        DemoPlan("a:1", "a:2", {user: "x" for user in PASSWORDS if user != "alice"})
