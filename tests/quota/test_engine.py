"""The engine against the scalar model, on random histories: batches, late rows, quota edits, and looks between them.

Then the contract that the model has not: what the engine takes, what it refuses, and its largest numbers.
"""

from dataclasses import fields
from itertools import product
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quota.engine import QuotaEngine, Scope
from quota.errors import InvalidUsage
from quota.resolution import Side
from quota.throttle_time import ThrottleCaps
from schemas.throttle_record import holds
from tests.quota.factories import decide, loaded, owed, quota_row, snapshot, table, usage_row
from tests.quota.model import DEFAULT, TYPES, ScalarModel

START_MS = 1_700_000_000_000
AT_MS = 1_700_000_040_000
USERS = ["a", "b", "zoë", "a-user-of-more-than-16-bytes"]
CLIENTS = ["", "c", "d", "client-0123456789-0123456789", DEFAULT]
ENTITIES: list[dict[str, Any]] = [
    {"broker_id": broker, "user": u, "client_id": c} for broker in ("1", "2") for u in USERS for c in CLIENTS
]
SCOPES: tuple[Scope, ...] = ("cluster", "broker")
MODES: tuple[Literal["enforce", "shadow"], ...] = ("enforce", "enforce", "enforce", "shadow")
# Bounds and usage are close to each other, so that some rates are above the bound and buckets have levels in between.
bounds = st.one_of(st.none(), st.sampled_from([0.5, 7.5, 100, 1000.0, 12345]))
quota_rows = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.sampled_from(["", DEFAULT, DEFAULT, *USERS]),
            "client_id": st.sampled_from(["", DEFAULT, *CLIENTS[1:4]]),
            "mode": st.sampled_from(["enforce", "enforce", "enforce", "enforce", "shadow", "exempt"]),
            **dict.fromkeys(TYPES, bounds),
        }
    ).filter(lambda row: row["user"] or row["client_id"]),
    max_size=6,
    unique_by=lambda row: (row["user"], row["client_id"]),
)
PATTERNS = {
    "user_patterns": ["a", "a*", "a-*", "b", "zo*", "zoë", "*"],
    "client_id_patterns": ["c", "c*", "client-*", "d", "*"],
}
member_bounds = st.one_of(st.none(), st.sampled_from([0.5, 7.5, 100, 1000.0]))


@st.composite
def tenant_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Up to three tenants; each pattern is in one of them, or in none."""
    rows: list[dict[str, Any]] = []
    of_patterns = {part: [draw(st.integers(-1, 2)) for _ in some] for part, some in PATTERNS.items()}
    for number in range(draw(st.sampled_from([0, 1, 2, 3]))):
        row: dict[str, Any] = {
            part: [one for one, of in zip(some, of_patterns[part], strict=True) if of == number]
            for part, some in PATTERNS.items()
        }
        for quota_type in TYPES:
            row |= {quota_type: draw(bounds), f"member_{quota_type}": draw(member_bounds)}
        row["lend"] = draw(st.booleans())
        row["ceiling"] = draw(st.sampled_from([None, 1.0, 1.5, 4.0])) if row["lend"] else None
        row["mode"] = draw(st.sampled_from(["enforce", "enforce", "enforce", "shadow"]))
        has_bound = any(row[quota_type] is not None for quota_type in TYPES)
        if has_bound and (row["user_patterns"] or row["client_id_patterns"]):
            rows.append({"tenant": f"t{number}", **row})
    return rows


some_bytes = st.one_of(st.none(), st.just(0), *[st.integers(0, 100_000)] * 3, st.integers(0, 1 << 40))
some_ns = st.one_of(st.none(), st.just(0), *[st.integers(0, 10**12)] * 2, st.integers(0, 10**9))


@st.composite
def batch(draw: st.DrawFn, now_ms: int, num_samples: int, window_ms: int) -> list[dict[str, Any]]:
    """Rows up to `now_ms`. Some of them are late."""
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        age_ms = draw(st.one_of(st.integers(0, window_ms), st.integers(0, (num_samples + 4) * window_ms)))
        at_ms = now_ms - age_ms
        used = {
            "produced_bytes": draw(some_bytes),
            "fetched_bytes": draw(some_bytes),
            "io_time_ns": draw(some_ns),
            "network_time_ns": draw(some_ns),
        }
        start_ms = at_ms // window_ms * window_ms
        entity = draw(st.one_of(st.sampled_from(ENTITIES[:3]), st.sampled_from(ENTITIES)))
        rows.append({**entity, **used, "sample_start_ms": start_ms, "last_event_ms": at_ms})
        rows[-1]["in_gap"] = draw(st.sampled_from([None, False, False, True]))
    return rows


caps = st.one_of(st.sampled_from(["sample_window", "window", "none"]), st.integers(1, 50_000))


FORGIVEN = [("a", ""), ("a", "c"), ("a", DEFAULT), ("", "c"), ("zoë", "")]


@given(data=st.data())
@settings(max_examples=30)
def test_engine_equals_the_scalar_model(data: st.DataObject) -> None:
    num_samples, window_ms = data.draw(st.integers(1, 11)), data.draw(st.sampled_from([1000, 2000, 5000]))
    scope: Scope = data.draw(st.sampled_from(SCOPES))
    carry_debt = data.draw(st.booleans())
    cap = {quota_type: data.draw(caps) for quota_type in TYPES}
    engine = QuotaEngine(num_samples, window_ms, ThrottleCaps(**cap), scope, carry_debt)
    model = ScalarModel(num_samples, window_ms, cap, scope, carry_debt)
    # By then a debt of ten bursts is paid and a bucket full when late usage comes, and no member of a tenant counts as
    # one that wants more: the model need not expire anything.
    idle_ms = ((12 if carry_debt else 2) * num_samples + 4) * window_ms
    now_ms = START_MS + data.draw(st.integers(0, 10_000))
    entities = table(ENTITIES)
    for version in range(data.draw(st.integers(1, 4))):
        rows, mode, tenants = data.draw(quota_rows), data.draw(st.sampled_from(MODES)), data.draw(tenant_rows())
        engine.load_quotas(snapshot(rows, tenants, version, mode))
        model.load_quotas(rows, mode, tenants)
        for _ in range(data.draw(st.integers(1, 4))):
            if data.draw(st.integers(0, 4)) == 0:
                last_ms, now_ms = now_ms, now_ms - data.draw(st.integers(1, 3_600_000))
                engine.begin_epoch(last_ms, now_ms)
                model.begin_epoch(last_ms, now_ms)
            now_ms += data.draw(st.one_of(st.just(0), st.integers(0, window_ms), st.integers(0, 15 * window_ms)))
            if data.draw(st.integers(0, 4)) == 0:
                sensor = data.draw(st.sampled_from(FORGIVEN))
                engine.forgive([sensor])
                model.forgive(*sensor)
            usage = data.draw(batch(now_ms, num_samples, window_ms))
            assert engine.record(table(usage), now_ms).to_pylist() == model.record(usage, now_ms)
            engine.expire_idle(now_ms, idle_ms)
            look_ms = now_ms + data.draw(st.integers(0, 13 * window_ms))
            assert engine.evaluate(entities, look_ms).to_pylist() == model.evaluate(ENTITIES, look_ms)
            assert engine.resolve(entities).to_pylist() == model.resolve(ENTITIES)
            claims_by_key_are_those_by_name(engine, look_ms)
            for side in Side:
                rates = engine.rates(entities, look_ms, side).to_pylist()
                assert rates == expected_rates(model, look_ms, side.name.lower())


def claims_by_key_are_those_by_name(engine: QuotaEngine, look_ms: int) -> None:
    users = [{**entity, "client_id": None} for entity in ENTITIES if not entity["client_id"]]
    rows = [(target, quota_type) for target in (*ENTITIES, *users) for quota_type in range(len(TYPES))]
    broker: dict[str, Any] = {} if engine.scope == "broker" else {"broker_id": ""}
    targets, types = table([{**target, **broker} for target, _ in rows]), np.array([number for _, number in rows])
    by_key, is_known = engine.claims(engine.keys_of(targets, types), types, look_ms)
    by_name = engine.claims_by_name(targets, types, look_ms)
    for field in fields(by_key):
        np.testing.assert_array_equal(*(getattr(one.take(is_known), field.name) for one in (by_key, by_name)))


def expected_rates(model: ScalarModel, look_ms: int, side: str) -> list[dict[str, Any]]:
    """What `QuotaEngine.rates` has: on the shadow side only what a shadow row bounds."""
    found = []
    for number, (entity, quota_type) in enumerate(product(ENTITIES, TYPES)):
        key = model.key(side, quota_type, entity)
        standing, bound = model.standing(side, quota_type, key[3]), model.bound(key)
        observed, window_ms = model.rate(key, look_ms)
        is_shown = standing is not None and bound is not None and observed
        if standing is None or not is_shown or (side == "shadow" and standing.mode != "shadow"):
            continue
        about = {**entity, "level": standing.level, "mode": standing.mode, "bound": bound, **model.about(key)}
        found.append({"entity": number // 3, "observed": observed, "window_ms": window_ms, **about})
    return found


def test_sensors_that_expire_start_anew_and_the_others_stay() -> None:
    rows = [quota_row("a", producer_byte_rate=100), quota_row(DEFAULT, DEFAULT, request_percentage=1)]
    engine, model = loaded(*rows, scope="broker"), ScalarModel(scope="broker")
    model.load_quotas(rows)
    end_ms = START_MS + 3_600_000
    for at_ms, users in (
        (START_MS, {"a", "b"}),
        (end_ms, {"b"}),
        (end_ms + 1, {"b"}),
        (end_ms + 2, {"b", "zoë"}),
        (end_ms + 3, {"a", "b"}),
    ):
        senders = [entity for entity in ENTITIES if entity["user"] in users]
        io_time_ns = 10**9 if at_ms in {START_MS, end_ms + 3} else None  # so the types' sensors are idle at other times
        usage = [{**usage_row(at_ms, produced_bytes=9999, io_time_ns=io_time_ns), **sender} for sender in senders]
        assert engine.record(table(usage), at_ms).to_pylist() == model.record(usage, at_ms)
        dropped = engine.expire_idle(at_ms)
        assert (dropped > 0) == (at_ms == end_ms + 1)
        assert engine.evaluate(table(ENTITIES), at_ms).to_pylist() == model.evaluate(ENTITIES, at_ms)


@pytest.mark.parametrize("users", ["a", DEFAULT])
def test_claims_are_known_when_a_type_has_quotas_and_no_usage_yet(users: str) -> None:
    rows = [quota_row(users, producer_byte_rate=1_000)]
    engine = loaded(*rows)
    decide(engine, AT_MS, usage_row(AT_MS, user="a", produced_bytes=20_000, fetched_bytes=1))
    engine.load_quotas(snapshot([*rows, quota_row("other", consumer_byte_rate=1)], version=2))
    claims_by_key_are_those_by_name(engine, AT_MS + 1)


@pytest.mark.parametrize(
    ("sensor", "owing"),
    [(("u", "c"), "ud vc vd"), (("u", DEFAULT), "vc vd"), (("u", ""), "uc ud vc vd"), (("v", ""), "uc ud")],
)
def test_a_forgiven_sensor_is_as_new_and_others_owe_what_they_owed(sensor: tuple[str, str], owing: str) -> None:
    engine = loaded(quota_row(DEFAULT, producer_byte_rate=1_000), quota_row("u", DEFAULT, producer_byte_rate=1_000))
    usage = [usage_row(AT_MS, user=user, client_id=client, produced_bytes=20_000) for user in "uv" for client in "cd"]
    decide(engine, AT_MS, *usage)
    engine.forgive([sensor])
    owed = engine.evaluate(table(usage), AT_MS + 1).to_pylist()
    assert " ".join(row["user"] + row["client_id"] for row in owed if row["owed_ms"]) == owing


@pytest.mark.parametrize(
    ("caps", "applied"),
    [((1000, 1000, 1000), 2), ((1000, 1000, 999), 0), ((999, 1000, 999), 1), ((1000, 1001, 1001), 2)],
)
def test_the_longest_capped_throttle_applies_and_ties_go_to_request_then_producer(
    caps: tuple[int, int, int], applied: int
) -> None:
    bounds: dict[str, Any] = dict.fromkeys(TYPES, 0.001)
    engine = loaded(quota_row(client_id="c", **bounds), max_throttle_time=ThrottleCaps(*caps))
    found = decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=10**6, fetched_bytes=10**6, io_time_ns=10**9))
    assert [row["throttle_time_ms"] for row in found] == list(caps)
    assert [row["asks_hold"] for row in found] == [number == applied for number in range(3)]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_names_may_be_stored_in_any_way_and_in_chunks(kind: pa.DataType) -> None:
    plain = table([usage_row(AT_MS, user=user, produced_bytes=20_000) for user in ("u", "v", "u")])
    schema = pa.schema([(f.name, kind if pa.types.is_string(f.type) else f.type) for f in plain.schema])
    stored = pa.concat_tables([plain.slice(0, 1).cast(schema), plain.slice(1).cast(schema)])
    engines = [loaded(quota_row(producer_byte_rate=1000), scope="broker") for _ in range(2)]
    assert engines[0].record(plain, AT_MS).equals(engines[1].record(stored, AT_MS))


def test_sums_are_exact_where_a_float_is_not() -> None:
    engine = loaded(quota_row(producer_byte_rate=1e300))
    decide(engine, AT_MS, *(usage_row(AT_MS, produced_bytes=used) for used in (1 << 53, 1, 1)))
    assert owed(engine, AT_MS)["observed"] == ((1 << 53) + 2) / 10.0


@pytest.mark.parametrize(
    "change",
    [
        {"sample_start_ms": AT_MS + 1},
        {"sample_start_ms": AT_MS - 1000, "last_event_ms": AT_MS},
        {"last_event_ms": AT_MS + 1000},
        {"last_event_ms": AT_MS + 501},
        {"last_event_ms": None},
        {"produced_bytes": -1},
        {"io_time_ns": -1},
    ],
)
def test_usage_that_can_not_be_is_refused_before_anything_changes(change: dict[str, Any]) -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    good = usage_row(AT_MS, produced_bytes=20_000)
    with pytest.raises(InvalidUsage, match="|".join(change)):
        decide(engine, AT_MS + 500, good, {**usage_row(AT_MS), **change})
    assert owed(engine, AT_MS)["observed"] == 0.0


@pytest.mark.parametrize(
    ("name", "column", "fault"),
    [("user", None, "is not in the table"), ("produced_bytes", pa.array([1.5]), "has the type double")],
)
def test_a_column_that_is_missing_or_of_another_type_is_named(name: str, column: pa.Array | None, fault: str) -> None:
    usage = table([usage_row(AT_MS)]).drop_columns([name])
    with pytest.raises(InvalidUsage, match=f"column '{name}' {fault}"):
        loaded().record(usage if column is None else usage.append_column(name, column), AT_MS)


def test_time_does_not_go_back() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS)
    for call in (lambda: decide(engine, AT_MS - 1), lambda: owed(engine, AT_MS - 1)):
        with pytest.raises(InvalidUsage, match=f"the evaluation at {AT_MS - 1} is before the last one, at {AT_MS}"):
            call()


def test_many_sensors_at_once_equal_few_at_a_time() -> None:
    whole, piecewise = (loaded(quota_row(DEFAULT, DEFAULT, producer_byte_rate=1000)) for _ in range(2))
    usage = table([usage_row(AT_MS, user=f"user-{i}", produced_bytes=i) for i in range(70_000)])
    found = whole.record(usage, AT_MS)
    pieces = [piecewise.record(usage.slice(start, 9000), AT_MS) for start in range(0, 70_000, 9000)]
    assert found.num_rows == 60_000 - 1, "the one exactly at its bound is none"
    assert found.sort_by("user")["observed"].equals(pa.concat_tables(pieces).sort_by("user")["observed"])
    assert whole.evaluate(usage, AT_MS).equals(piecewise.evaluate(usage, AT_MS))


@pytest.mark.parametrize(
    ("count", "spread_ms", "is_one_batch"),
    [(3, 0, False), (4, 0, False), (4, 0, True), (5, 1_000, True), (40, 1_000, False)],
)
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


def test_a_sensor_whose_usage_is_all_late_gets_no_decision_by_its_rate() -> None:
    engine = loaded(quota_row(producer_byte_rate=1_000))
    assert decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=12_000))
    late = usage_row(AT_MS - LATE_MS, produced_bytes=1)
    assert decide(engine, AT_MS, late) == []
    assert decide(engine, AT_MS, late, usage_row(AT_MS, produced_bytes=1))


LATE_MS = 60_000
OWES_TWELVE_SECONDS = 11_000 + 12_000  # a full bucket, and a debt of a burst and a sample window


@pytest.mark.parametrize(
    ("late_bytes", "about", "throttle_time_ms"),
    [
        (OWES_TWELVE_SECONDS - 1, {}, None),
        (OWES_TWELVE_SECONDS, {}, None),
        (OWES_TWELVE_SECONDS + 1, {}, 10_000),
        (OWES_TWELVE_SECONDS + 500_000, {}, 10_000),
        (OWES_TWELVE_SECONDS + 500_000, {"in_gap": True}, None),
    ],
    ids=["below", "equal", "above", "capped", "of a gap"],
)
def test_late_usage_throttles_if_its_bucket_owes_more_than_a_burst_and_a_window(
    late_bytes: int, about: dict[str, Any], throttle_time_ms: int | None
) -> None:
    engine = loaded(quota_row(producer_byte_rate=1_000))
    decided = decide(engine, AT_MS, usage_row(AT_MS - LATE_MS, produced_bytes=late_bytes, **about))
    found = [(row["cause"], row["throttle_time_ms"], row["raw_throttle_time_ms"], row["asks_hold"]) for row in decided]
    assert found == ([] if throttle_time_ms is None else [("debt", throttle_time_ms, 0, True)])


@pytest.mark.parametrize("of_each", [300, 450])
def test_a_client_below_its_bound_is_not_held_when_a_silent_broker_comes_back(of_each: int) -> None:
    engine = loaded(quota_row(producer_byte_rate=1_000))
    seconds = [AT_MS + 1_000 * second for second in range(61)]
    for at_ms in seconds:
        assert decide(engine, at_ms, usage_row(at_ms, produced_bytes=of_each)) == []
    assert decide(engine, seconds[-1], *(usage_row(at_ms, produced_bytes=of_each) for at_ms in seconds[:-1])) == []


def test_late_usage_refills_its_bucket_to_the_end_of_each_of_its_windows() -> None:
    engine = loaded(quota_row(producer_byte_rate=1_000))
    late = [usage_row(AT_MS - LATE_MS + 1_000 * second, produced_bytes=1_000) for second in range(40)]
    assert decide(engine, AT_MS, *late) == []
    assert owed(engine, AT_MS)["tokens"] == 11_000.0  # it used what its quota allows, however late it was reported


def test_a_client_is_asked_about_after_the_last_sensor_has_expired() -> None:
    engine = loaded(quota_row("a", producer_byte_rate=1_000), quota_row("b", "c", request_percentage=5))
    decide(engine, AT_MS, usage_row(AT_MS, user="a", produced_bytes=1))
    assert engine.expire_idle(AT_MS + 3_600_001) == 2
    claims_by_key_are_those_by_name(engine, AT_MS + 3_600_001)


def test_usage_of_a_debt_that_the_rate_sees_too_is_a_violation_and_no_debt() -> None:
    engine = loaded(quota_row(producer_byte_rate=1_000))
    late = usage_row(AT_MS - LATE_MS, produced_bytes=200_000)
    (decided,) = decide(engine, AT_MS, late, usage_row(AT_MS, produced_bytes=50_000))
    assert (decided["cause"], decided["raw_throttle_time_ms"]) == ("violation", 40_000)
    assert owed(engine, AT_MS)["owed_ms"] == decided["owed_ms"] > decided["raw_throttle_time_ms"]


some_quotas = st.lists(
    st.tuples(
        st.sampled_from(["", DEFAULT, "a", "b"]),
        st.sampled_from(["", DEFAULT, "c", "d"]),
        st.sampled_from(["enforce", "shadow", "exempt"]),
        st.tuples(*[st.sampled_from([None, 1.0, 2.0])] * 3),
    ).filter(lambda row: bool(row[0] or row[1])),
    max_size=12,
    unique_by=lambda row: row[:2],
)


PRODUCED = 5.0, None, None
TEAM = {"tenant": "team", "user_patterns": ["a"], "client_id_patterns": ["c"], "producer_byte_rate": 50.0}


APART = [("a", "c", "enforce", PRODUCED), (DEFAULT, "", "enforce", PRODUCED), (DEFAULT, "d", "enforce", PRODUCED)]


@example(APART, [])
@example([("", "c", "enforce", PRODUCED), ("a", "d", "exempt", PRODUCED)], [TEAM])
@example([("", DEFAULT, "enforce", PRODUCED)], [TEAM])
@given(some_quotas, tenant_rows())
def test_a_throttle_of_a_user_holds_exactly_the_clients_that_resolve_to_its_sensor(
    rows: list[Any], tenants: list[dict[str, Any]]
) -> None:
    quotas = [quota_row(user, client, mode=mode, **dict(zip(TYPES, b, strict=True))) for user, client, mode, b in rows]
    engine, model = loaded(*quotas, tenants=tenants), ScalarModel()
    model.load_quotas(quotas, tenants=tenants)
    entities = [
        usage_row(AT_MS, user=u, client_id=c)
        for u in ("a", "b", "new", DEFAULT)
        for c in ("", "c", "d", "new", DEFAULT)
    ]
    resolved = engine.resolve(table(entities)).to_pylist()
    assert resolved == model.resolve(entities)
    of_users: dict[tuple[str, str], dict[str, bool]] = {}
    for row in resolved:
        sensor = model.sensor("enforced", row["quota_type"], row["user"], row["client_id"])
        is_of_user = sensor == (row["user"], "", "")
        in_sensor = is_of_user and row["mode"] == "enforce" and row["bound"] is not None
        of_users.setdefault((row["user"], row["quota_type"]), {})[row["client_id"]] = in_sensor
    for (user, quota_type), in_sensor_of in of_users.items():
        excepted = engine.except_client_ids(user, TYPES.index(quota_type))
        if excepted is None:
            assert not in_sensor_of["new"], "a new name would evade throttles of single clients"
        elif any(in_sensor_of.values()):
            record = {"user": user, "client_id": None, "except_client_ids": excepted}
            assert {one: holds(record, user, one) for one in in_sensor_of} == in_sensor_of
