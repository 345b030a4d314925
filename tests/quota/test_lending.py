"""Tenants in the engine: who is a member, what is lent, who is not concerned, and what a new process knows.

`test_engine` compares all of it with the scalar model. Here are the cases that a reader looks for first.
"""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.engine import QuotaEngine, Scope
from tests.quota.factories import decide, loaded, quota_row, snapshot, table, usage_row
from tests.quota.model import TYPES
from tests.quota.test_engine import MODES, SCOPES, START_MS, batch, quota_rows, tenant_rows

AT_MS = 1_700_000_040_000
Row = dict[str, Any]


def tenant(name: str = "team", *users: str, **columns: Any) -> Row:
    """A row of the table of tenants: 4 000 bytes a second together, lent to each other."""
    return {"tenant": name, "user_patterns": users, "producer_byte_rate": 4_000.0, "lend": True, **columns}


def standings(engine: QuotaEngine, *clients: str) -> list[tuple[Any, ...]]:
    """Sensor, level, T and tenant of clients, each `user/client-id`, for produced bytes."""
    names = [dict(zip(("user", "client_id"), client.split("/"), strict=True)) for client in clients]
    found = engine.resolve(pa.Table.from_pylist(names)).to_pylist()[::3]
    return [(f"{r['sensor_user']}/{r['sensor_client_id']}", r["level"], r["own_bound"], r["tenant"]) for r in found]


QUOTAS = [
    quota_row("alice", producer_byte_rate=1_000.0),
    quota_row("alice", "etl", producer_byte_rate=500.0),
    quota_row("bob", "etl", producer_byte_rate=700.0),
    quota_row("vip", mode="exempt"),
    quota_row("", "shared", producer_byte_rate=300.0),
]


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        pytest.param("alice/web", ("alice/", 3, 1_000.0, "team"), id="a user with a quota"),
        pytest.param("alice/etl", ("alice/etl", 1, 500.0, "team"), id="a pair with a quota"),
        pytest.param("carol/x", ("carol/", 9, 400.0, "team"), id="without a quota: all clients of the user together"),
        pytest.param("carol/y", ("carol/", 9, 400.0, "team"), id="another name changes nothing"),
        pytest.param("carol/", ("carol/", 9, 400.0, "team"), id="no name either"),
        pytest.param("bob/web-1", ("bob/", 9, 50.0, "webs"), id="by its client-id"),
        pytest.param("carol/web-1", ("carol/", 9, 400.0, "team"), id="by its user before its client-id"),
        pytest.param("bob/etl", ("bob/etl", 1, None, None), id="of no tenant"),
        pytest.param("carol/shared", ("/shared", 7, None, None), id="a client-id that all users share"),
        pytest.param("vip/web-1", ("vip/", 3, None, None), id="exempt"),
        pytest.param("dave/x", ("/x", None, None, None), id="without a quota, of no tenant"),
    ],
)
def test_who_is_a_member_of_which_tenant(client: str, expected: tuple[Any, ...]) -> None:
    webs = tenant("webs", client_id_patterns=["web-*"], member_producer_byte_rate=50.0)
    engine = loaded(*QUOTAS, tenants=[tenant("team", "alice", "carol", "vip"), webs])
    assert standings(engine, client) == [expected]


def test_unused_share_is_lent_and_taken_back_at_once_when_its_owner_wants_it() -> None:
    bounds = {"a": 1_000.0, "b": 1_000.0, "c": 2_000.0}
    quotas = [quota_row(user, producer_byte_rate=rate) for user, rate in bounds.items()]
    engine = loaded(*quotas, tenants=[tenant("team", *bounds)])
    greedy, idle = usage_row(AT_MS, user="a", produced_bytes=60_000), usage_row(AT_MS, user="b", produced_bytes=1_000)
    (lent,) = decide(engine, AT_MS, greedy, idle)
    assert (lent["bound"], lent["own_bound"], lent["tenant"], lent["tenant_level"]) == (3_900.0, 1_000.0, "team", 3.9)
    wanted = [usage_row(AT_MS, user=user, produced_bytes=60_000) for user in "bc"]
    assert [row["bound"] for row in decide(engine, AT_MS + 1, *wanted)] == [1_000.0, 2_000.0]
    assert engine.evaluate(table([greedy]), AT_MS + 1)["bound"][0].as_py() == 1_000.0


@pytest.mark.parametrize(
    "after", [[], [{"consumer_byte_rate": 4_000.0, "producer_byte_rate": None}], [{"producer_byte_rate": 1_600.0}]]
)
def test_the_level_of_a_tenant_that_is_gone_is_forgotten_with_the_next_batch(after: list[Row]) -> None:
    quotas = [quota_row(user, producer_byte_rate=1_000.0) for user in "ab"]
    team = tenant("team", "a", "b", producer_byte_rate=1_500.0)
    engine = loaded(*quotas, tenants=[team])
    used = [usage_row(AT_MS, user=user, produced_bytes=60_000) for user in "ab"]

    def stored() -> list[float]:
        return [row["tenant_level"] for row in engine.buckets().to_pylist() if row["tenant_level"] is not None]

    decide(engine, AT_MS, *used)
    assert stored() == [0.75]
    engine.load_quotas(snapshot(quotas, [team | one for one in after]))
    engine.load_quotas(snapshot(quotas, [team]))
    assert stored() == [0.75], "a batch may come that has the quotas from before"
    engine.load_quotas(snapshot(quotas, [team | one for one in after]))
    decide(engine, AT_MS + 1)
    assert stored() == []
    engine.load_quotas(snapshot(quotas, [team]))
    assert stored() == []
    (found,) = decide(engine, AT_MS + 2, usage_row(AT_MS, user="a", produced_bytes=1))
    assert found["tenant_level"] == 0.75, "it is found anew"


def test_a_level_that_is_restored_before_any_quotas_counts_under_the_first() -> None:
    quotas = [quota_row(user, producer_byte_rate=1_000.0) for user in "ab"]
    before, team = QuotaEngine(), tenant("team", "a", "b", producer_byte_rate=1_500.0)
    before.load_quotas(snapshot(quotas, [team]))
    decide(before, AT_MS, *(usage_row(AT_MS, user=user, produced_bytes=60_000) for user in "ab"))
    engine = QuotaEngine()
    engine.restore_buckets(before.buckets())
    for bound, level in ((1_500.0, [0.75]), (1_600.0, [])):
        engine.load_quotas(snapshot(quotas, [team | {"producer_byte_rate": bound}]))
        assert [row["tenant_level"] for row in engine.buckets().to_pylist() if row["tenant"] == "team"] == level


@pytest.mark.parametrize(("later_ms", "bound"), [(48_999, 1_000.0), (49_000, 2_000.0)])
def test_who_owes_wants_more_until_its_debt_is_paid_and_a_window_after(later_ms: int, bound: float) -> None:
    """It is held meanwhile, and nothing is heard of it: otherwise its share would be lent as soon as it is held."""
    quotas = [quota_row(user, producer_byte_rate=1_000.0) for user in "ab"]
    engine = loaded(*quotas, tenants=[tenant("team", "a", "b", producer_byte_rate=2_000.0)])
    greedy = [usage_row(AT_MS, user=user, produced_bytes=60_000) for user in "ab"]
    assert [row["owed_ms"] for row in decide(engine, AT_MS, *greedy)] == [50_000, 50_000]  # 38 s by its bucket
    (found,) = decide(engine, AT_MS + later_ms, usage_row(AT_MS + later_ms, user="b", produced_bytes=90_000))
    assert found["bound"] == bound


def test_a_new_client_id_with_each_request_evades_nothing() -> None:
    engine = loaded(tenants=[tenant("team", "a", member_producer_byte_rate=1_000.0, lend=False)])
    for number in range(30):
        at_ms = AT_MS + 100 * number
        found = decide(engine, at_ms, usage_row(at_ms, user="a", client_id=f"new-{number}", produced_bytes=1_000))
    (last,) = found
    assert (last["observed"], last["bound"]) == (30_000 / 10.9, 1_000.0)
    assert (last["sensor_user"], last["sensor_client_id"], last["level"], last["asks_hold"]) == ("a", "", 9, True)
    assert engine.except_client_ids("a", 0) == ()


# Adding a tenant.


@given(data=st.data())
@settings(max_examples=40)
def test_adding_a_tenant_changes_no_decision_of_others(data: st.DataObject) -> None:
    """Its members are users that no other tenant has. Its types record where they did not, and bound no others."""
    scope: Scope = data.draw(st.sampled_from(SCOPES))
    quotas, mode = data.draw(quota_rows), data.draw(st.sampled_from(MODES))
    tenants = [{**row, "client_id_patterns": []} for row in data.draw(tenant_rows())]
    tenants = [{**row, "user_patterns": [one for one in row["user_patterns"] if one != "*"]} for row in tenants]
    tenants = [row for row in tenants if row["user_patterns"]]
    bounds = data.draw(st.lists(st.sampled_from([None, 100.0, 1e6]), min_size=3, max_size=3).filter(any))
    added = {"tenant": "x", "user_patterns": ["x-*"], **dict(zip(TYPES, bounds, strict=True))}
    added |= {"lend": data.draw(st.booleans()), "mode": data.draw(st.sampled_from(["enforce", "shadow"]))}
    before, after = (loaded(scope=scope) for _ in range(2))
    now_ms = START_MS
    for version in range(1, data.draw(st.integers(2, 6))):
        before.load_quotas(snapshot(quotas, tenants, version, mode))
        after.load_quotas(snapshot(quotas, [*tenants, added], version, mode))
        now_ms += data.draw(st.integers(0, 4_000))
        usage = data.draw(batch(now_ms, 11, 1_000))
        usage += [{**row, "user": f"x-{row['user']}"} for row in data.draw(batch(now_ms, 11, 1_000))]
        found = [engine.record(table(usage), now_ms).to_pylist() for engine in (before, after)]
        of_others = [[row for row in rows if not row["user"].startswith("x-")] for rows in found]
        assert of_others[0] == of_others[1]
        others = table([row for row in usage if not row["user"].startswith("x-")])
        owed = (engine.evaluate(others, now_ms).to_pylist() for engine in (before, after))
        one, other = ([row for row in rows if row["bound"] is not None] for rows in owed)
        assert one == other
        assert before.resolve(others).equals(after.resolve(others))


# A new process.


def in_time(rows: list[Row], num_samples: int, window_ms: int, now_ms: int) -> list[Row]:
    oldest_ms = (now_ms // window_ms - num_samples + 1) * window_ms
    return [row for row in rows if row["sample_start_ms"] >= oldest_ms]


@given(data=st.data())
@settings(max_examples=40)
def test_an_engine_that_is_restored_while_it_lends_goes_on_to_the_last_bit(data: st.DataObject) -> None:
    """Windows from usage, buckets and levels as they were stored; the first engine takes them up too, as the job's."""
    num_samples, window_ms = data.draw(st.sampled_from([1, 3, 11])), 1_000
    about: Row = {"num_samples": num_samples, "scope": data.draw(st.sampled_from(SCOPES))}
    quotas, tenants = data.draw(quota_rows), [{**row, "lend": True} for row in data.draw(tenant_rows())]
    engines = [loaded(*quotas, tenants=tenants, **about) for _ in range(2)]
    now_ms, batches = START_MS, []
    for _ in range(data.draw(st.integers(1, 4))):
        now_ms += data.draw(st.integers(0, 3_000))
        usage = table(in_time(data.draw(batch(now_ms, num_samples, window_ms)), num_samples, window_ms, now_ms))
        engines[0].record(usage, now_ms)
        batches.append((usage, now_ms))
    stored = engines[0].buckets()
    for usage, at_ms in batches:
        engines[1].record(usage, at_ms)
    for engine in engines:
        engine.restore_buckets(stored)
    for _ in range(data.draw(st.integers(1, 3))):
        now_ms += data.draw(st.integers(0, 3_000))
        usage = table(in_time(data.draw(batch(now_ms, num_samples, window_ms)), num_samples, window_ms, now_ms))
        one, other = (engine.record(usage, now_ms) for engine in engines)
        assert one.to_pylist() == other.to_pylist()
    parts = ("broker_id", "sensor_user", "sensor_client_id", "quota_type", "mode", "tenant")
    order = [(name, "ascending") for name in parts]
    one, other = (engine.buckets().sort_by(order) for engine in engines)
    assert one.to_pylist() == other.to_pylist()


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_who_wanted_more_within_the_last_sample_windows_is_stored_until_they_end(mode: str) -> None:
    """One wants more at AT_MS + 10. The snapshot is taken in the last of the windows in which that counts."""
    quotas = [quota_row("a", producer_byte_rate=2_000.0), quota_row("b", producer_byte_rate=3_000.0)]
    engine = loaded(*quotas, tenants=[tenant("team", "a", "b", producer_byte_rate=4_500.0, lend=False, mode=mode)])
    at_ms, last_ms = AT_MS + 10, AT_MS + 11_009
    decide(engine, at_ms, usage_row(at_ms, user="a", produced_bytes=18_100))  # 0.904 of its bound
    decide(engine, last_ms)
    engine.restore_buckets(engine.buckets())
    found = decide(engine, last_ms, usage_row(last_ms, user="b", produced_bytes=80_000))
    assert [row["bound"] for row in found if row["tenant"]] == [2_700.0], "0.954 of 3 000, if one were satisfied"
