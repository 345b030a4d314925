"""The engine against the scalar model, on random histories: batches, late rows, quota edits, and looks between them."""

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.engine import RATES_SCHEMA, QuotaEngine, Scope
from quota.snapshot import QuotaSnapshot
from quota.throttle_time import ThrottleCaps
from tests.quota.factories import quota_row, table, usage_row
from tests.quota.model import DEFAULT, TYPES, ScalarModel

START_MS = 1_700_000_000_000
USERS = ["a", "b", "zoë", "a-user-of-more-than-16-bytes"]
CLIENTS = ["", "c", "d", "client-0123456789-0123456789", DEFAULT]
ENTITIES = [{"broker_id": broker, "user": u, "client_id": c} for broker in ("1", "2") for u in USERS for c in CLIENTS]

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
    return rows


caps = st.one_of(st.sampled_from(["sample_window", "window", "none"]), st.integers(1, 50_000))


@given(data=st.data())
@settings(max_examples=60)
def test_engine_equals_the_scalar_model(data: st.DataObject) -> None:
    num_samples, window_ms = data.draw(st.integers(1, 11)), data.draw(st.sampled_from([1000, 2000, 5000]))
    scope: Scope = data.draw(st.sampled_from(SCOPES))
    carry_debt = data.draw(st.booleans())
    cap = {quota_type: data.draw(caps) for quota_type in TYPES}
    engine = QuotaEngine(num_samples, window_ms, ThrottleCaps(**cap), scope, carry_debt)
    model = ScalarModel(num_samples, window_ms, cap, scope, carry_debt)
    of_rates = QuotaEngine(num_samples, window_ms, ThrottleCaps(**cap), scope, carry_debt=False)
    now_ms = START_MS + data.draw(st.integers(0, 10_000))
    entities = table(ENTITIES)
    for version in range(data.draw(st.integers(1, 4))):
        rows, mode = data.draw(quota_rows), data.draw(st.sampled_from(MODES))
        for one in (engine, of_rates):
            one.load_quotas(QuotaSnapshot.from_rows(rows, version, mode))
        model.load_quotas(rows, mode)
        for _ in range(data.draw(st.integers(1, 4))):
            if data.draw(st.integers(0, 4)) == 0:
                last_ms, now_ms = now_ms, now_ms - data.draw(st.integers(1, 3_600_000))
                for any_engine in (engine, of_rates, model):
                    any_engine.begin_epoch(last_ms, now_ms)
            now_ms += data.draw(st.one_of(st.just(0), st.integers(0, window_ms), st.integers(0, 15 * window_ms)))
            usage, is_old = data.draw(batch(now_ms, num_samples, window_ms)), data.draw(st.booleans())
            assert engine.record(table(usage), now_ms, is_old).to_pylist() == model.record(usage, now_ms, is_old)
            look_ms = now_ms + data.draw(st.integers(0, 13 * window_ms))
            assert engine.evaluate(entities, look_ms).to_pylist() == model.evaluate(ENTITIES, look_ms)
            assert engine.resolve(entities).to_pylist() == model.resolve(ENTITIES)
            of_rates.record(table(usage), now_ms, is_old)
            of_rates.expire_idle(now_ms, num_samples * window_ms)
            rates = expected_rates(model, look_ms)
            assert [one.rates(entities, look_ms).to_pylist() for one in (engine, of_rates)] == [rates, rates]


def expected_rates(model: ScalarModel, look_ms: int) -> list[dict[str, Any]]:
    """Of `resolve` and `evaluate` what `QuotaEngine.rates` has."""
    found = zip(model.resolve(ENTITIES), model.evaluate(ENTITIES, look_ms), strict=True)
    both = ({**resolved, **owed} for resolved, owed in found if resolved["mode"] == "enforce")
    return [
        {name: row[name] for name in RATES_SCHEMA.names} for row in both if row["observed"] > 0 and row["bound"] > 0
    ]


@given(data=st.data())
@settings(max_examples=20)
def test_adding_shadow_rows_changes_no_enforced_decision(data: st.DataObject) -> None:
    rows = data.draw(quota_rows)
    visible = [row for row in rows if row["mode"] != "shadow"]
    with_shadow, without = QuotaEngine(5), QuotaEngine(5)
    with_shadow.load_quotas(QuotaSnapshot.from_rows(rows, 1))
    without.load_quotas(QuotaSnapshot.from_rows(visible, 1))
    now_ms = START_MS
    for _ in range(3):
        now_ms += data.draw(st.integers(0, 3000))
        usage = table(data.draw(batch(now_ms, 5, 1000)))
        decided = with_shadow.record(usage, now_ms).to_pylist()
        assert [row for row in decided if row["mode"] == "enforce"] == without.record(usage, now_ms).to_pylist()
        entities = table(ENTITIES)
        assert with_shadow.evaluate(entities, now_ms).equals(without.evaluate(entities, now_ms))


@pytest.mark.parametrize("scope", ["cluster", "broker"])
def test_sensors_that_expire_start_anew_and_the_others_stay(scope: Scope) -> None:
    rows = [quota_row("a", producer_byte_rate=100), quota_row(DEFAULT, DEFAULT, request_percentage=1)]
    engine, model = QuotaEngine(scope=scope), ScalarModel(scope=scope)
    engine.load_quotas(QuotaSnapshot.from_rows(rows, 1))
    model.load_quotas(rows)
    hour_ms = 3_600_000
    end_ms = START_MS + hour_ms
    for at_ms, users in (
        (START_MS, {"a", "b"}),
        (end_ms, {"b"}),
        (end_ms + 1, {"b"}),
        (end_ms + 2, {"b", "zoë"}),
        (end_ms + 3, {"a", "b"}),
    ):
        senders = [entity for entity in ENTITIES if entity["user"] in users]
        # Request time only at the beginning and at the end, so that the sensors of the two types become idle at
        # different times.
        io_time_ns = 10**9 if at_ms in {START_MS, end_ms + 3} else None
        usage = [{**usage_row(at_ms, produced_bytes=9999, io_time_ns=io_time_ns), **sender} for sender in senders]
        assert engine.record(table(usage), at_ms).to_pylist() == model.record(usage, at_ms)
        dropped = engine.expire_idle(at_ms)
        assert (dropped > 0) == (at_ms == end_ms + 1)
        assert engine.evaluate(table(ENTITIES), at_ms).to_pylist() == model.evaluate(ENTITIES, at_ms)
