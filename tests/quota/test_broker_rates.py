import numpy as np

from quota.broker_levels.usage import BrokerRates
from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import decide, owed, quota_row, usage_row

AT_MS = 1_700_000_040_000


def test_the_rate_of_a_cell_is_that_of_the_engine_in_broker_scope() -> None:
    engine = QuotaEngine(scope="broker", carry_debt=False)
    engine.load_quotas(QuotaSnapshot.from_rows([quota_row(producer_byte_rate=1000)], 1))
    rates = BrokerRates(0, AT_MS)
    for second, sent in enumerate((7_001, 0, 3_333, 12_345, 1)):
        at_ms = AT_MS + 1_000 * second + 250 * (second % 4)
        decide(engine, at_ms, usage_row(at_ms, produced_bytes=sent))
        rates.record(np.array([0]), at_ms // 1000, np.array([sent]), np.array([at_ms]))
        view = rates.view(np.array([[0]]), at_ms)
        wanted = owed(engine, at_ms)
        assert (view.observed[0, 0], view.window_ms[0, 0]) == (wanted["observed"], wanted["window_ms"])
        assert view.last_ms[0, 0] == at_ms


def test_the_recent_rate_forgets_after_three_seconds() -> None:
    rates = BrokerRates(0, AT_MS)
    rates.record(np.array([0]), AT_MS // 1000, np.array([6_000]), np.array([AT_MS]))
    seen = [rates.view(np.array([[0]]), AT_MS + age_ms).recent[0, 0] for age_ms in (0, 999, 1_000, 2_999, 3_000)]
    assert seen == [3_000.0, 6_000 / 2.999, 3_000.0, 6_000 / 2.999, 0.0]


def test_a_cell_without_usage_is_at_rest() -> None:
    rates = BrokerRates(0, AT_MS)
    before = rates.view(np.array([[-1, 4]]), AT_MS)
    rates.record(np.array([1]), AT_MS // 1000, np.array([5]), np.array([AT_MS]))
    after = rates.view(np.array([[-1, 0]]), AT_MS)
    for view in (before, after):
        assert view.observed.tolist() == view.recent.tolist() == [[0.0, 0.0]]
        assert view.last_ms.tolist() == [[0, 0]]


def test_usage_that_comes_too_late_for_every_window_changes_no_rate() -> None:
    rates = BrokerRates(0, AT_MS)
    rates.record(np.array([0]), AT_MS // 1000 - 12, np.array([5_000]), np.array([AT_MS - 12_000]))
    assert rates.view(np.array([[0]]), AT_MS).observed[0, 0] == 0.0
    rates.record(np.array([0]), AT_MS // 1000 - 5, np.array([5_000]), np.array([AT_MS - 5_000]))
    view = rates.view(np.array([[0]]), AT_MS)
    assert (view.observed[0, 0], view.recent[0, 0]) == (500.0, 0.0)


def test_request_time_is_a_percentage_of_one_thread() -> None:
    rates = BrokerRates(2, AT_MS)
    rates.record(np.array([0]), AT_MS // 1000, np.array([1_000_000_000]), np.array([AT_MS]))
    assert rates.view(np.array([[0]]), AT_MS).observed[0, 0] == 10.0


def test_a_cell_beyond_all_that_had_usage_is_at_rest() -> None:
    rates = BrokerRates(0, AT_MS)
    rates.record(np.arange(64), AT_MS // 1000, np.full(64, 5), np.full(64, AT_MS))
    view = rates.view(np.array([[63, 64, 1_000]]), AT_MS)
    assert view.recent.tolist() == [[2.5, 0.0, 0.0]]
    assert view.last_ms.tolist() == [[AT_MS, 0, 0]]


def test_cells_that_are_kept_close_the_gaps() -> None:
    rates = BrokerRates(0, AT_MS)
    rates.record(np.arange(3), AT_MS // 1000, np.array([10, 20, 30]), np.full(3, AT_MS))
    rates.keep(np.array([False, True, True]))
    rates.record(np.array([2]), AT_MS // 1000, np.array([40]), np.array([AT_MS]))
    assert rates.view(np.array([[0, 1, 2, 3]]), AT_MS).observed.tolist() == [[2.0, 3.0, 4.0, 0.0]]
