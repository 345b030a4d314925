"""Who was seen lately, against a dictionary; and what the engine of the dashboard keeps."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dashboard.live_rates import LiveRates
from pipeline.settings.model import EngineSettings
from quota.engine import Scope
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row, table, usage_row

NOW_MS = 1_700_000_000_000
KEPT_MS = 300_000

ROWS = st.tuples(*[st.sampled_from(["a", "b", ""])] * 3, st.integers(0, 20_000))
BATCHES = st.lists(st.tuples(st.sampled_from([0, 1_000, KEPT_MS - 1, KEPT_MS]), st.lists(ROWS, max_size=4)), max_size=8)


def usage(rows: list[tuple[str, str, str, int]], at_ms: int) -> Any:
    found = table([
        usage_row(at_ms - age_ms, user=user, client_id=client_id, broker_id=broker_id)
        for user, client_id, broker_id, age_ms in rows
    ])  # fmt: skip
    return found.append_column("request_count", found["produced_bytes"])


@pytest.mark.parametrize("scope", ["cluster", "broker"])
@given(batches=BATCHES)
def test_whom_it_has_seen_is_what_a_dictionary_knows(scope: Scope, batches: Any) -> None:
    rates, at_ms = LiveRates(EngineSettings(), scope), NOW_MS
    rates.load(QuotaSnapshot.from_rows([], 1), {})
    model: dict[tuple[str, str], tuple[int, int]] = {}
    for later_ms, rows in batches:
        at_ms += later_ms
        rates.record(usage(rows, at_ms), at_ms)
        for user, client_id, _, age_ms in rows:
            key = (user, client_id)
            model[key] = (max((at_ms - age_ms) // 1_000 * 1_000, model.get(key, (0, 0))[0]), at_ms)
        model = {key: one for key, one in model.items() if one[1] >= at_ms - KEPT_MS}
        assert rates.seen() == {key: seen_ms for key, (_, seen_ms) in model.items()}
        assert rates.active_clients == sum(sample_ms > at_ms - 11_000 for sample_ms, _ in model.values())


def test_names_that_do_not_come_back_cost_no_memory_for_long() -> None:
    rates = LiveRates(EngineSettings(), "cluster")
    rates.load(QuotaSnapshot.from_rows([quota_row("<default>", producer_byte_rate=1e6)], 1), {})
    found = []
    for after_ms, users in ((0, "ab"), (10_999, "a"), (11_000, "a"), (22_000, "a")):
        rows = table([usage_row(NOW_MS + after_ms, user=user, produced_bytes=1) for user in users])
        rates.record(rows.append_column("request_count", rows["produced_bytes"]), NOW_MS + after_ms)
        found.append((sorted(one.user for one in rates.sensors()), rates._enforced.num_sensors))
    assert found == [(["a", "b"], 2), (["a", "b"], 2), (["a"], 2), (["a"], 1)]
