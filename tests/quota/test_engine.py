"""The contract of the engine: what it takes, what it refuses, and the order and meaning of its answers."""

from typing import Any

import pyarrow as pa
import pytest

from quota.engine import Scope
from quota.errors import InvalidArgument, InvalidUsage
from quota.snapshot import QuotaSnapshot
from quota.throttle_time import ThrottleCaps
from tests.quota.factories import decide, loaded, owed, quota_row, table, usage_row

AT_MS = 1_700_000_040_000


def test_null_leaves_the_sensor_alone_and_zero_touches_it() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=20_000))
    assert decide(engine, AT_MS + 1, usage_row(AT_MS + 1, fetched_bytes=5)) == []
    assert [row["user"] for row in decide(engine, AT_MS + 1, usage_row(AT_MS + 1, produced_bytes=0))] == ["u"]


def test_everybody_who_sent_usage_to_a_violated_sensor_is_throttled_and_nobody_else() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS, *(usage_row(AT_MS, client_id=client, produced_bytes=9000) for client in "ab"))
    found = decide(engine, AT_MS, usage_row(AT_MS, client_id="c", produced_bytes=0))
    assert [(row["client_id"], row["sensor_user"], row["sensor_client_id"]) for row in found] == [("c", "u", "")]


ALL_TYPES: dict[str, Any] = {"producer_byte_rate": 1, "consumer_byte_rate": 1, "request_percentage": 0.001}


def test_rows_come_sorted_by_name_then_type_with_shadow_after_enforced() -> None:
    shadow = quota_row("<default>", "<default>", mode="shadow", **ALL_TYPES)
    engine = loaded(quota_row("<default>", "", **ALL_TYPES), shadow)
    used = {"produced_bytes": 10**6, "fetched_bytes": 10**6, "network_time_ns": 10**9}
    names = [("é", "a"), ("b", "é"), ("b", "Z"), ("B", "")]
    found = decide(engine, AT_MS, *(usage_row(AT_MS, user=user, client_id=client, **used) for user, client in names))
    types = ["producer_byte_rate", "consumer_byte_rate", "request_percentage"]
    expected = [
        (user, client, quota_type, mode)
        for user, client in sorted(names)
        for quota_type in types
        for mode in ("enforce", "shadow")
        if client or mode == "enforce"  # an empty client-id is not bounded by the default client-id
    ]
    assert [(row["user"], row["client_id"], row["quota_type"], row["mode"]) for row in found] == expected


@pytest.mark.parametrize(
    ("caps", "applied"),
    [
        ((1000, 1000, 1000), "request_percentage"),
        ((1000, 1000, 999), "producer_byte_rate"),
        ((999, 1000, 999), "consumer_byte_rate"),
        ((1000, 1001, 1001), "request_percentage"),
    ],
)
def test_the_longest_capped_throttle_applies_and_ties_go_to_request_then_producer(
    caps: tuple[int, int, int], applied: str
) -> None:
    engine = loaded(quota_row(**ALL_TYPES), max_throttle_time=ThrottleCaps(*caps))
    used = {"produced_bytes": 10**6, "fetched_bytes": 10**6, "io_time_ns": 10**9}
    found = decide(engine, AT_MS, usage_row(AT_MS, **used))
    assert [row["quota_type"] for row in found if row["applied"]] == [applied]
    assert [row["throttle_time_ms"] for row in found] == list(caps)


def test_the_cap_is_a_column_and_null_without_one() -> None:
    caps = ThrottleCaps(producer_byte_rate="none", consumer_byte_rate="window", request_percentage="sample_window")
    engine = loaded(quota_row(**ALL_TYPES), max_throttle_time=caps)
    used = {"produced_bytes": 10**6, "fetched_bytes": 10**6, "io_time_ns": 10**9}
    found = decide(engine, AT_MS + 400, usage_row(AT_MS + 400, **used))
    assert [row["max_throttle_time_ms"] for row in found] == [None, 10_400, 1000]
    assert all(row["raw_throttle_time_ms"] > 10_400 for row in found)


def test_cluster_scope_sums_over_brokers_and_broker_scope_does_not() -> None:
    rows = [usage_row(AT_MS, broker_id=broker, produced_bytes=6000) for broker in ("1", "2")]
    assert [row["broker_id"] for row in decide(loaded(quota_row(producer_byte_rate=1000)), AT_MS, *rows)] == [""]
    assert decide(loaded(quota_row(producer_byte_rate=1000), scope="broker"), AT_MS, *rows) == []


@pytest.mark.parametrize("scope", ["cluster", "broker"])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_names_may_be_stored_in_any_way_and_in_chunks(kind: pa.DataType, scope: Scope) -> None:
    rows = [usage_row(AT_MS, user=user, client_id="x" * 20, produced_bytes=20_000) for user in ("u", "v", "u")]
    plain = table(rows)
    schema = pa.schema([(f.name, kind if pa.types.is_string(f.type) else f.type) for f in plain.schema])
    stored = pa.concat_tables([plain.slice(0, 1).cast(schema), plain.slice(1).cast(schema)])
    engines = [loaded(quota_row(producer_byte_rate=1000), scope=scope) for _ in range(2)]
    assert engines[0].record(plain, AT_MS).equals(engines[1].record(stored, AT_MS))
    assert engines[0].evaluate(plain, AT_MS).equals(engines[1].evaluate(stored, AT_MS))


def test_sums_are_exact_where_a_float_is_not() -> None:
    engine = loaded(quota_row(producer_byte_rate=1e300))
    decide(engine, AT_MS, *(usage_row(AT_MS, produced_bytes=used) for used in (1 << 53, 1, 1)))
    assert owed(engine, AT_MS)["observed"] == ((1 << 53) + 2) / 10.0


def test_looks_change_nothing() -> None:
    engine, other = (loaded(quota_row(producer_byte_rate=1000)) for _ in range(2))
    for at_ms in (AT_MS, AT_MS + 15_500, AT_MS + 20_000):
        usage = usage_row(at_ms, produced_bytes=12_000)
        assert decide(engine, at_ms, usage) == decide(other, at_ms, usage)
        entities = table([usage_row(at_ms), usage_row(at_ms, user="never seen")])
        engine.evaluate(entities, at_ms + 12_345)
        engine.resolve(entities)
    assert engine.num_sensors == other.num_sensors


def test_entities_not_seen_for_two_hours_are_forgotten() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    hour_ms = 3_600_000
    many = [usage_row(AT_MS, client_id=f"c{i}", produced_bytes=1) for i in range(1000)]
    decide(engine, AT_MS, *many)
    entities = engine._sensors.entities
    assert len(entities) == 1000
    for at_ms in (AT_MS, AT_MS + hour_ms + 1, AT_MS + 2 * hour_ms + 2):
        decide(engine, at_ms, usage_row(at_ms, client_id="c1", produced_bytes=1))
        assert engine.expire_idle(at_ms) == 0, "they share the sensor of their user, which is in use"
    assert len(entities) == 1
    assert owed(engine, AT_MS + 2 * hour_ms + 2)["observed"] == 1 / 10.002


def test_a_measure_column_without_a_type_is_all_null() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000, consumer_byte_rate=1))
    usage = table([usage_row(AT_MS, produced_bytes=20_000, fetched_bytes=20_000)])
    assert engine.record(usage, AT_MS).num_rows == 2
    at = usage.column_names.index("fetched_bytes")
    without = usage.set_column(at, "fetched_bytes", pa.nulls(1))
    assert engine.record(without, AT_MS)["quota_type"].to_pylist() == ["producer_byte_rate"]


def test_quotas_loaded_again_change_nothing_but_the_version() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=12_000))
    engine.load_quotas(QuotaSnapshot.from_rows([quota_row(producer_byte_rate=1000)], 2))
    assert engine.snapshot.version == 2
    assert len(decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=0))) == 1


def test_a_gap_longer_than_the_ring_empties_every_window() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=12_000))
    decide(engine, AT_MS + 100_000, usage_row(AT_MS + 100_000, produced_bytes=1000))
    assert owed(engine, AT_MS + 100_000)["observed"] == 100.0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"sample_start_ms": AT_MS + 1}, "sample_start_ms"),
        ({"sample_start_ms": AT_MS - 1000}, "last_event_ms"),
        ({"last_event_ms": AT_MS + 1000}, "last_event_ms"),
        ({"last_event_ms": AT_MS + 501}, "last_event_ms"),
        ({"produced_bytes": -1}, "produced_bytes"),
        ({"io_time_ns": -1}, "io_time_ns"),
        ({"last_event_ms": None}, "last_event_ms"),
    ],
)
def test_usage_that_can_not_be_is_refused_before_anything_changes(change: dict[str, Any], name: str) -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    good = usage_row(AT_MS, produced_bytes=20_000)
    for bad in ([{**good, **change}], [good, {**usage_row(AT_MS - 3000), **change}]):
        with pytest.raises(InvalidUsage) as refused:
            decide(engine, AT_MS + 500, *bad)
        assert any(column in str(refused.value) for column in (name, "sample_start_ms", "last_event_ms"))
        assert owed(engine, AT_MS)["observed"] == 0.0


@pytest.mark.parametrize(
    "name", ["user", "client_id", "broker_id", "produced_bytes", "sample_start_ms", "last_event_ms"]
)
def test_a_missing_column_is_named(name: str) -> None:
    engine = loaded(quota_row(producer_byte_rate=1000), scope="broker")
    with pytest.raises(InvalidUsage, match=f"column '{name}' is not in the table; its columns are"):
        engine.record(table([usage_row(AT_MS)]).drop_columns([name]), AT_MS)


def test_columns_of_other_types_are_refused() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    usage = table([usage_row(AT_MS)])
    for name, column in (("user", pa.array([1])), ("produced_bytes", pa.array([1.5]))):
        with pytest.raises(InvalidUsage) as refused:
            engine.record(usage.set_column(usage.column_names.index(name), name, column), AT_MS)
        assert f"column '{name}' has the type" in str(refused.value)


def test_time_does_not_go_back() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS)
    for call in (lambda: decide(engine, AT_MS - 1), lambda: owed(engine, AT_MS - 1)):
        with pytest.raises(InvalidUsage, match=f"the evaluation at {AT_MS - 1} is before the last one, at {AT_MS}"):
            call()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("num_samples", 0),
        ("num_samples", 1025),
        ("sample_window_ms", 0),
        ("sample_window_ms", 3_600_001),
        ("scope", "rack"),
    ],
)
def test_settings_out_of_range_are_refused(setting: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        loaded(**{setting: value})
    assert str(refused.value).startswith(f"{setting} is {value!r}; it can be ")


def test_many_sensors_at_once_equal_few_at_a_time() -> None:
    rates = {"producer_byte_rate": 1000, "consumer_byte_rate": 500}
    whole, piecewise = (loaded(quota_row("<default>", "<default>", **rates)) for _ in range(2))
    rows = [
        usage_row(AT_MS, user=f"user-{i}", client_id=f"c{i % 7}", produced_bytes=i, fetched_bytes=i * 7 % 9001)
        for i in range(70_000)
    ]
    usage = table(rows)
    found = whole.record(usage, AT_MS)
    pieces = [piecewise.record(usage.slice(start, 9000), AT_MS) for start in range(0, 70_000, 9000)]
    order = [(name, "ascending") for name in ("user", "client_id")]
    assert found.num_rows == 60_000 - 1 + sum(i * 7 % 9001 > 5000 for i in range(70_000))
    assert found.sort_by(order)["observed"].equals(pa.concat_tables(pieces).sort_by(order)["observed"])
    assert whole.evaluate(usage, AT_MS).equals(piecewise.evaluate(usage, AT_MS))


@pytest.mark.parametrize("count", [3, 4, 5, 40])
@pytest.mark.parametrize("spread_ms", [0, 1_000])
@pytest.mark.parametrize("is_one_batch", [False, True])
def test_sums_stop_at_the_largest_number_and_an_offender_stays_one(
    count: int, spread_ms: int, is_one_batch: bool
) -> None:
    engine = loaded(quota_row(producer_byte_rate=1_000_000))
    times_ms = [1_700_000_010_000 + (number % 5) * spread_ms for number in range(count)]
    rows = [usage_row(at_ms, produced_bytes=2**61) for at_ms in times_ms]
    last_ms = max(times_ms)
    for batch in [rows] if is_one_batch else [[row] for row in rows]:
        decided = decide(engine, last_ms, *batch)
    wanted = float(min(count * 2**61, 2**63 - 1)) / (decided[0]["window_ms"] / 1_000.0)
    assert decided[0]["observed"] == wanted


def test_times_of_both_kinds_of_threads_stop_at_the_largest_number_and_are_owed() -> None:
    engine = loaded(quota_row(request_percentage=1))
    (decided,) = decide(engine, AT_MS, usage_row(AT_MS, io_time_ns=2**62, network_time_ns=2**62))
    assert decided["observed"] == float(2**63 - 1) * 1e-7 / (decided["window_ms"] / 1_000.0)
    assert owed(engine, AT_MS, "request_percentage")["tokens"] == -110.0  # ten bursts


def test_a_sensor_whose_usage_is_all_late_gets_no_first_decision() -> None:
    engine = loaded(quota_row(producer_byte_rate=1_000))
    at_ms = 1_700_000_010_000
    assert decide(engine, at_ms, usage_row(at_ms, produced_bytes=1_000_000))
    late = usage_row(at_ms - 60_000, produced_bytes=1)
    assert decide(engine, at_ms, late) == []
    assert decide(engine, at_ms, late, usage_row(at_ms, produced_bytes=1))
