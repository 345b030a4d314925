"""Engines that have a share of the users each decide what one engine decides for all of them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.engine import QuotaEngine, Scope
from quota.snapshot import ALL_USERS, QuotaSnapshot, Share, undivided
from tests.quota.factories import quota_row, table, usage_row
from tests.quota.test_engine_equals_model import ENTITIES, MODES, SCOPES, START_MS, batch, quota_rows

Rows = list[dict[str, Any]]


def in_order(rows: Rows) -> Rows:
    return sorted(
        rows, key=lambda row: (row["broker_id"], row["user"], row["client_id"], row["quota_type"], row.get("mode", ""))
    )


class Shared:
    """One engine a share, each with the usage of its own users alone."""

    def __init__(self, shares: int, scope: Scope) -> None:
        self.engines = {Share(number, shares): QuotaEngine(3, 1_000, scope=scope) for number in range(shares)}

    def load_quotas(self, snapshot: QuotaSnapshot) -> None:
        for engine in self.engines.values():
            engine.load_quotas(snapshot)

    def record(self, usage: Rows, now_ms: int) -> Rows:
        return self._of_all("record", usage, now_ms)

    def evaluate(self, entities: Rows, now_ms: int) -> Rows:
        return self._of_all("evaluate", entities, now_ms)

    def _of_all(self, method: str, rows: Rows, now_ms: int) -> Rows:
        """What they all answer, each asked about its own users."""
        answers: Rows = []
        for share, engine in self.engines.items():
            own = [row for row in rows if share.has(row["user"])]
            answers += getattr(engine, method)(table(own), now_ms).to_pylist()
        return answers


@given(data=st.data())
@settings(max_examples=30)
def test_shares_decide_and_owe_what_one_engine_does_through_edits_of_the_quotas(data: st.DataObject) -> None:
    scope: Scope = data.draw(st.sampled_from(SCOPES))
    one, shared = QuotaEngine(3, 1_000, scope=scope), Shared(data.draw(st.integers(2, 5)), scope)
    now_ms = START_MS
    for version in range(data.draw(st.integers(1, 3))):
        rows, mode = data.draw(quota_rows), data.draw(st.sampled_from(MODES))
        snapshot = QuotaSnapshot.from_rows([row for row in rows if row["user"]], version, mode)
        assert not undivided(snapshot.quotas)
        for engine in (one, shared):
            engine.load_quotas(snapshot)
        for _ in range(data.draw(st.integers(1, 3))):
            now_ms += data.draw(st.integers(0, 3_000))
            usage = data.draw(batch(now_ms, 3, 1_000))
            assert in_order(shared.record(usage, now_ms)) == in_order(one.record(table(usage), now_ms).to_pylist())
            owed = one.evaluate(table(ENTITIES), now_ms).to_pylist()
            bounded = [row for row in shared.evaluate(ENTITIES, now_ms) if row["bound"] is not None]
            assert in_order(bounded) == in_order([row for row in owed if row["bound"] is not None])


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
@pytest.mark.parametrize("client_id", ["etl", "<default>"])
def test_a_quota_of_a_client_id_alone_can_not_be_divided(client_id: str, mode: str) -> None:
    """Each of two users stays below the bound, and together they are above it."""
    snapshot = QuotaSnapshot.from_rows([quota_row("", client_id, producer_byte_rate=1_000.0, mode=mode)], 1)
    assert undivided(snapshot.quotas)
    first = "a"
    second = next(user for user in "bcdefgh" if Share(0, 2).has(user) != Share(0, 2).has(first))
    usage = [
        {**usage_row(START_MS, produced_bytes=1_500), "user": user, "client_id": "etl"} for user in (first, second)
    ]
    one, shared = QuotaEngine(3, 1_000), Shared(2, "cluster")
    for engine in (one, shared):
        engine.load_quotas(snapshot)
    assert len(one.record(table(usage), START_MS).to_pylist()) == 2
    assert shared.record(usage, START_MS) == []


def test_an_exempt_client_id_is_one_too() -> None:
    assert undivided(QuotaSnapshot.from_rows([quota_row("", "etl", mode="exempt")], 1).quotas)


@given(user=st.text())
def test_a_user_belongs_to_one_share(user: str) -> None:
    assert ALL_USERS.has(user)
    assert sum(Share(number, 5).has(user) for number in range(5)) == 1
