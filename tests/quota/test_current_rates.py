"""The rows of `rates`: every sensor as the engine has it, and what its clients use of it, against a naive model."""

from collections import defaultdict
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota import current_rates as module
from quota.arrays import Flags
from quota.current_rates import COLUMNS, CurrentRates, RecentUsage, current_rates
from quota.engine import Scope
from quota.entity import QUOTA_TYPES
from quota.resolution import Side
from tests.quota.factories import loaded, quota_row, table, usage_row

START_MS = 1_700_000_000_000
RATE = "producer_byte_rate"
NOT_HELD: list[dict[str, Any]] = []
Row = dict[str, Any]


class Lived:
    """An engine and the usage it has recorded, with the rates of its clients."""

    def __init__(self, quotas: list[Row], scope: Scope = "cluster", num_samples: int = 11) -> None:
        self.engine = loaded(*quotas, num_samples=num_samples, scope=scope)
        self.recent = RecentUsage(num_samples, 1_000, scope == "broker")
        self.usage: list[Row] = []
        self.now_ms = START_MS

    def record(self, *rows: Row, after_ms: int = 250) -> None:
        self.now_ms += after_ms
        self.engine.record(table(rows), self.now_ms)
        self.recent.add(table(rows), self.now_ms)
        self.usage += rows

    def of(self, clients: pa.Table, always: Flags | None = None) -> pa.Table:
        return pa.concat_tables([self.engine.rates(clients, self.now_ms, side, always) for side in Side])

    def current(self, held: list[Row] = NOT_HELD) -> CurrentRates:
        kinds = [*((name, pa.string()) for name in ("broker_id", "user", "client_id", "quota_type"))]
        held_rows = pa.Table.from_pylist(held, pa.schema([*kinds, ("until_ms", pa.int64())]))
        return current_rates(self.recent.at(self.now_ms), self.now_ms, self.of, held_rows)

    def use(self, user: str, client_id: str, produced_bytes: int | None, **columns: Any) -> Row:
        return usage_row(self.now_ms, user=user, client_id=client_id, produced_bytes=produced_bytes, **columns)


def lived(quotas: list[Row], *used: tuple[str, str, int], **settings: Any) -> Lived:
    found = Lived(quotas, **settings)
    found.record(*(found.use(*one) for one in used))
    return found


def picked(found: CurrentRates, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in found.rows.to_pylist()]


NAMES = st.sampled_from(["a", "b", "c"])
QUOTAS = st.lists(
    st.builds(
        quota_row,
        st.sampled_from(["", "a", "b", "<default>"]),
        st.sampled_from(["a", "<default>"]),
        producer_byte_rate=st.sampled_from([None, 10.0, 1e4]),
        request_percentage=st.sampled_from([None, 1e-3]),
        mode=st.sampled_from(["enforce", "shadow"]),
    )
    | st.builds(quota_row, st.sampled_from(["a", "<default>"]), consumer_byte_rate=st.just(50.0)),
    max_size=5,
    unique_by=lambda row: (row["user"], row["client_id"]),
)
USED = st.fixed_dictionaries(
    {
        **dict.fromkeys(("user", "client_id"), NAMES),
        **dict.fromkeys(("produced_bytes", "fetched_bytes", "io_time_ns"), st.none() | st.integers(0, 10**6)),
        "broker_id": st.sampled_from(["1", "2"]),
    }
)
BATCHES = st.lists(
    st.tuples(st.integers(0, 9_000), st.lists(st.tuples(st.integers(0, 14_000), USED), max_size=6)),
    min_size=1,
    max_size=6,
)


@given(quotas=QUOTAS, batches=BATCHES, scope=st.sampled_from(["cluster", "broker"]))
@settings(max_examples=60)
def test_every_rate_is_the_engines_and_what_a_client_uses_is_summed_by_the_windows_of_its_sensor(
    quotas: list[Row], batches: list[tuple[int, list[Any]]], scope: Scope
) -> None:
    one = Lived(quotas, scope)
    for after_ms, used in batches:
        rows = [usage_row(one.now_ms + after_ms - age_ms, **columns) for age_ms, columns in used]
        one.record(*rows, after_ms=after_ms)
    found = one.current().rows
    assert found.schema == COLUMNS
    rows = found.to_pylist()
    model = model_rows(one, scope)
    assert {key(row): row for row in rows if row["bound"] is not None} == {key(row): row for row in model}
    assert len(rows) == len({key(row) for row in rows})
    shares = [row["share"] for row in rows if row["clients"] is not None]
    assert shares == sorted(shares, reverse=True)
    unbounded = [row for row in rows if row["bound"] is None]
    used_bounded = {client_key(row) for row in clients_of(one, scope) if own_rate(one, row, scope)}
    assert not {client_key(row) for row in unbounded} & used_bounded
    assert all(row["observed"] == row["own_rate"] > 0 for row in unbounded)


def client_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("broker_id", "user", "client_id", "quota_type"))


def clients_of(one: Lived, scope: Scope) -> list[Row]:
    """The engine's row of each client and type."""
    used = [{**row, "broker_id": row["broker_id"] if scope == "broker" else ""} for row in one.usage]
    names = {tuple(row[name] for name in ("broker_id", "user", "client_id")): row for row in used}
    return one.of(table([*names.values()])).to_pylist() if names else []


def model_rows(one: Lived, scope: Scope) -> list[Row]:
    sensors: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    of_sensor = ("broker_id", "quota_type", "level", "sensor_user", "sensor_client_id", "mode")
    for row in clients_of(one, scope):
        if own_rate(one, row, scope):
            sensors[tuple(row[name] for name in of_sensor)].append(row)
    found = []
    for clients in sensors.values():
        about = {name: value for name, value in clients[0].items() if name != "entity"}
        about |= {"share": about["observed"] / about["bound"], "held_until_ms": None, "broker_held_share": None}
        is_pair = bool(about["sensor_user"] and about["sensor_client_id"])
        names = {"user": about["sensor_user"] or None, "client_id": about["sensor_client_id"] or None}
        own = pytest.approx(own_rate(one, clients[0], scope)) if is_pair else None
        found.append(about | names | {"own_rate": own, "clients": len(clients)})
        for row in [] if is_pair else clients:
            client = {name: row[name] for name in ("user", "client_id")}
            found.append(about | client | {"own_rate": pytest.approx(own_rate(one, row, scope)), "clients": None})
    return found


def own_rate(one: Lived, row: Row, scope: Scope) -> float:
    measure = dict(zip(QUOTA_TYPES, ("produced_bytes", "fetched_bytes", "io_time_ns"), strict=True))[row["quota_type"]]
    names = ["user", "client_id", *(["broker_id"] if scope == "broker" else [])]
    own = (used for used in one.usage if all(used[name] == row[name] for name in names))
    amount = sum(used[measure] or 0 for used in own if used["sample_start_ms"] >= one.now_ms - row["window_ms"])
    unit = 1e-7 if row["quota_type"] == "request_percentage" else 1.0
    return float(amount * unit / (row["window_ms"] / 1000))


def key(row: Row) -> tuple[Any, ...]:
    names = ("broker_id", "user", "client_id", "quota_type", "mode", "sensor_user", "sensor_client_id")
    return (*(row[name] for name in names), row["clients"] is None)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_of_a_sensor_the_clients_that_use_the_most_have_rows_and_all_are_counted(most: int) -> None:
    one = lived([quota_row("a", producer_byte_rate=1000.0)], ("a", "x", 10), ("a", "y", 30), ("a", "z", 20))
    with patch.object(module, "MOST_CLIENTS", most):
        found = picked(one.current(), "client_id", "clients")
    assert found[0] == (None, 3)
    assert {client_id for client_id, _ in found[1:]} == {*"yzx"[:most]}


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_sensors_are_left_out_whole_the_smallest_share_first(most: int) -> None:
    quotas = [quota_row("<default>", producer_byte_rate=1000.0)]
    one = lived(quotas, ("a", "x", 10), ("b", "x", 30), ("c", "", 20))
    with patch.object(module, "MOST_ROWS", most):
        found = picked(one.current(), "user")
    assert sorted(found) == [(user,) for user in "bc"[: most // 2] for _ in range(2)]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_of_clients_without_a_bound_those_that_use_the_most_have_rows(most: int) -> None:
    one = lived([], ("a", "x", 10), ("b", "x", 30), ("c", "x", 20), ("d", "x", 0))
    with patch.object(module, "MOST_UNBOUNDED", most):
        found = one.current()
    assert picked(found, "user", "own_rate") == [("b", 3.0), ("c", 2.0), ("a", 1.0)][:most]
    assert (found.active_clients, found.produced_bytes_per_second) == (4, 6.0)


def test_a_hold_is_of_its_type_and_of_its_client_or_its_sensors_clients() -> None:
    """The client-id `c` has a sensor of its own, and `b` also a throttle of its own, from before an edit."""
    one = Lived(
        [
            quota_row("a", producer_byte_rate=1.0, consumer_byte_rate=1.0),
            quota_row("a", "c", producer_byte_rate=1.0),
            quota_row("a", "b", producer_byte_rate=1.0, mode="shadow"),
        ]
    )
    names: list[tuple[str, str]] = [("a", ""), ("a", "b"), ("a", "c"), ("d", "b")]
    one.record(*(one.use(*name, 9_000, fetched_bytes=9_000) for name in names))
    holds: list[tuple[str | None, int]] = [(None, 5), ("b", 7), ("gone", 99)]
    held = [{"broker_id": "", "user": "a", "quota_type": RATE, "client_id": name, "until_ms": at} for name, at in holds]
    rows = picked(one.current(held), "user", "client_id", "quota_type", "mode", "held_until_ms")
    held_by_rate = {row[:2]: row[-1] for row in rows if row[2:4] == (RATE, "enforce")}
    assert held_by_rate == {("a", None): 7, ("a", ""): 5, ("a", "b"): 7, ("a", "c"): None}
    assert {row[-1] for row in rows if row[2:4] != (RATE, "enforce")} == {None}


@pytest.mark.parametrize(
    ("scope", "holds", "share"),
    [
        ("cluster", {"1": [(58, 30_000), (27, 27_000)], "2": [(40, 10_000)]}, 0.95),  # of the one that held it longest
        ("cluster", {"1": [(55, 50_000), (55, 50_000)]}, 1.0),  # on several connections
        ("cluster", {"1": [(30, 0)]}, None),
        ("cluster", {"1": [(12, 57_000)]}, 0.2),  # it goes on
        ("cluster", {"1": [(90, 57_000)]}, 0.45),  # it began before the minute
        ("cluster", {"1": [(90, 200_000)]}, 1.0),
        ("cluster", {"1": [(90, 30_000)]}, None),
        ("cluster", {"1": [(3_610, 2**40)]}, 50 / 60),  # holds are followed for an hour
        ("broker", {"1": [(50, 6_000)]}, 0.1),
    ],
)
def test_brokers_held_a_client_for_a_part_of_the_last_minute(
    scope: Scope, holds: dict[str, list[tuple[int, int]]], share: float | None
) -> None:
    """`holds`: by broker how many seconds ago each began, and how long it is."""
    one = Lived([quota_row("a", producer_byte_rate=1000.0)], scope)
    begun = [(ago, broker, held_ms) for broker, of_broker in holds.items() for ago, held_ms in of_broker]
    for ago, broker, held_ms in sorted(begun, reverse=True):
        one.now_ms = START_MS + 3_600_000 - ago * 1_000
        one.record(one.use("a", "x", 10, broker_id=broker, broker_throttle_ms=held_ms), after_ms=0)
    one.now_ms = START_MS + 3_600_000
    one.record(one.use("a", "x", 10, broker_id="1"), one.use("a", "y", 10, broker_id="1"), after_ms=0)
    rows = picked(one.current(), "client_id", "broker_held_share")
    assert [row for row in rows if row[0] == "x"] == [("x", share)]
    assert [row for row in rows if row[0] == "y"] == [("y", None)]
    assert [row for row in rows if row[0] is None] == [(None, share)]


@pytest.mark.parametrize(
    ("ago_s", "used", "share"),
    [
        (119, [], 1.0),
        (119, [(39, {"fetched_bytes": 0}, "1")], 1.0),  # as a connection that is not held: to the group's coordinator
        (119, [(39, {"fetched_bytes": 7}, "2")], 1.0),
        (140, [], 40 / 60),
        (90, [(80, {"produced_bytes": 7}, "1")], 0.5),  # of several connections the last one may be held for a minute
        (90, [(10, {"produced_bytes": 7}, "1"), (5, {"fetched_bytes": 7}, "1")], 50 / 60),
        (200, [(80, {"fetched_bytes": 7}, "1")], None),
    ],
)
def test_a_hold_of_more_than_a_minute_ends_when_the_broker_serves_the_client_again(
    ago_s: int, used: list[tuple[int, Row, str]], share: float | None
) -> None:
    """`used`: how many seconds ago, what, and of which broker."""
    one = Lived([quota_row("a", producer_byte_rate=1000.0)])
    end_ms = one.now_ms + ago_s * 1_000
    one.record(one.use("a", "x", 10, broker_id="1", broker_throttle_ms=120_000), after_ms=0)
    for seconds, amounts, broker_id in used:
        one.now_ms = end_ms - seconds * 1_000
        one.record(usage_row(one.now_ms, user="a", client_id="x", broker_id=broker_id, **amounts), after_ms=0)
    one.now_ms = end_ms
    one.record(one.use("a", "x", 10, broker_id="3"), after_ms=0)
    assert dict(picked(one.current(), "client_id", "broker_held_share"))["x"] == share


@pytest.mark.parametrize(
    ("rows", "silent_ms", "share"), [([quota_row("a", producer_byte_rate=1000.0)], 30_000, 0.5), ([], 6_000, 0.1)]
)
def test_a_client_that_is_silent_because_its_brokers_hold_it_has_a_row(
    rows: list[Row], silent_ms: int, share: float
) -> None:
    one = Lived(rows)
    one.record(one.use("a", "x", 10, broker_throttle_ms=57_000), after_ms=0)
    one.record(after_ms=silent_ms)
    one.record(one.use("a", "y", 10), after_ms=0)
    shares = dict(picked(one.current(), "client_id", "broker_held_share"))
    assert (shares["x"], shares["y"]) == (share, None)
    one.record(after_ms=87_000)
    assert picked(one.current(), "client_id") == []
