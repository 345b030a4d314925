"""Who was seen lately, against a dictionary; and what the engine of the dashboard keeps."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dashboard.live_rates import LiveRates, SeenClients
from pipeline.dashboard.views import client_rows
from pipeline.settings.model import EngineSettings
from quota.current_rates import SensorRate, SensorRates
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row, table, usage_row

NOW_MS = 1_700_000_000_000
KEPT_MS = 300_000
HOUR_MS = 3_600_000
BY_BROKER = ("user", "client_id", "broker_id")

ROWS = st.tuples(*[st.sampled_from(["a", "b", ""])] * 3, st.integers(0, 20_000))
BATCHES = st.lists(st.tuples(st.sampled_from([0, 1_000, KEPT_MS - 1, KEPT_MS]), st.lists(ROWS, max_size=4)), max_size=8)


def usage(rows: list[tuple[str, str, str, int]], at_ms: int) -> Any:
    return table([
        usage_row(at_ms - age_ms, user=user, client_id=client_id, broker_id=broker_id)
        | {"sample_start_ms": at_ms - age_ms}
        for user, client_id, broker_id, age_ms in rows
    ])  # fmt: skip


@pytest.mark.parametrize("names", [BY_BROKER[:2], BY_BROKER])
@given(batches=BATCHES)
def test_whom_it_has_seen_is_what_a_dictionary_knows(names: tuple[str, ...], batches: Any) -> None:
    seen, at_ms = SeenClients.none(names), NOW_MS
    model: dict[tuple[str, ...], tuple[int, int]] = {}
    for later_ms, rows in batches:
        at_ms += later_ms
        before, known = seen, dict(model)
        if rows:
            seen = seen.with_usage(usage(rows, at_ms), at_ms)
            for *parts, age_ms in rows:
                key = tuple(parts[: len(names)])
                model[key] = (max(at_ms - age_ms, model.get(key, (0, 0))[0]), at_ms)
            model = {key: one for key, one in model.items() if one[1] >= at_ms - KEPT_MS}
        assert shown(before, names) == known, "an earlier one stays as it was"
        assert shown(seen, names) == model
        clients = {key[:2]: max(one[1] for other, one in model.items() if other[:2] == key[:2]) for key in model}
        by_client = seen.by_client()
        assert shown(by_client, names[:2]).keys() == clients.keys()
        assert {client: by_client.get((client[0], client[1])) for client in clients} == clients
        assert by_client.get(("a", "never")) is None
        active = {key[:2] for key, (sample_ms, _) in model.items() if sample_ms > at_ms - 10_000}
        assert seen.number_since(at_ms - 10_000) == len(active)


def shown(seen: SeenClients, names: tuple[str, ...]) -> dict[tuple[str, ...], tuple[int, int]]:
    keys = zip(*(seen.names[name].to_pylist() for name in names), strict=True)
    return dict(zip(keys, zip(seen.sample_ms.tolist(), seen.seen_ms.tolist(), strict=True), strict=True))


def test_clients_are_those_seen_held_or_named_with_what_is_known_of_each() -> None:
    seen = SeenClients.none().with_usage(usage([("a", "x", "1", 0), ("b", "x", "1", 0)], NOW_MS), NOW_MS)
    half = SensorRate("producer_byte_rate", "b", "x", "b", "x", "", 1, 1.0, 2.0, 1, "enforce", ("b", "x"))
    used = SensorRates.of([half]).used_by_client()
    rows = client_rows(seen, used, {("b", "x"), ("c", "held")}, [("a", "x"), ("d", "named")]).to_pylist()
    assert {(row["user"], row["client_id"]): (row["seen_ms"], row["used"], row["throttled"]) for row in rows} == {
        ("a", "x"): (NOW_MS, None, False),
        ("b", "x"): (NOW_MS, 0.5, True),
        ("c", "held"): (None, None, True),
        ("d", "named"): (None, None, False),
    }
    assert client_rows(SeenClients.none(), SensorRates.of(()).used_by_client(), set(), []).num_rows == 0


def test_names_that_do_not_come_back_cost_no_memory_for_long() -> None:
    rates = LiveRates(EngineSettings(), "cluster")
    rates.load(QuotaSnapshot.from_rows([quota_row("<default>", producer_byte_rate=1e6)], 1), {})
    found = []
    for after_ms, users in ((0, "ab"), (10_999, "a"), (11_000, "a"), (22_000, "a")):
        rows = table([usage_row(NOW_MS + after_ms, user=user, produced_bytes=1) for user in users])
        rates.record(rows.append_column("request_count", rows["produced_bytes"]), NOW_MS + after_ms)
        found.append((sorted(one.user for one in rates.sensors()), rates._enforced.num_sensors))
    assert found == [(["a", "b"], 2), (["a", "b"], 2), (["a"], 2), (["a"], 1)]
