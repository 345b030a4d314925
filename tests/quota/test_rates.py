"""Throttle times that Kafka's own classes gave for known histories, and buckets. The V numbers name the vectors.

Kafka starts a sample window at the first event after the last window ended; ours start at multiples of w. The results
agree as long as the oldest window that counts starts at a multiple of w. All histories below are chosen so. These
vectors are left out because they are not: V33-V34, the eleventh call of V49, and V50 (windows that start at 10 500 ms).
Others have nothing to test here: V29 (in Kafka reading a metric changes it; `evaluate` changes nothing), V63-V64 (usage
that is taken back), V65-V68 (bounds that a snapshot refuses), V69-V72 (fetch sizes), V103-V108 and V110 (requests that
are refused).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from quota.engine import QuotaEngine
from quota.errors import InvalidUsage
from quota.rates import MAX_DEBT_BURSTS_OF_OLD, TokenBuckets
from quota.snapshot import QuotaSnapshot
from quota.throttle_time import ThrottleCaps
from tests.conformance.replay import as_kafka_int
from tests.quota.factories import decide, loaded, owed, quota_row, table, usage_row

START_MS = 1_700_000_040_000
UNCAPPED = ThrottleCaps(producer_byte_rate="none", consumer_byte_rate="none", request_percentage="none")
KAFKA = ThrottleCaps(producer_byte_rate="none")
PRODUCE, REQUEST = "producer_byte_rate", "request_percentage"


class History:
    """A client with one quota. Its usage is given as offsets from a start that is a multiple of w."""

    def __init__(
        self,
        bound: float,
        quota_type: str = PRODUCE,
        num_samples: int = 11,
        window_ms: int = 1000,
        caps: ThrottleCaps = KAFKA,
    ) -> None:
        self._type = quota_type
        self._window_ms = window_ms
        self._engine = QuotaEngine(num_samples, window_ms, caps)
        self.set_bound(bound)

    def set_bound(self, bound: float, user: str = "u") -> None:
        row = quota_row(user, "", **{self._type: bound})
        self._engine.load_quotas(QuotaSnapshot.from_rows([row], 1))

    def use(self, value: float, offset_ms: int) -> int:
        """Record bytes, or percent-seconds of request time. Returns the throttle time."""
        return int(sum(row["throttle_time_ms"] for row in self.decide(value, offset_ms)))

    def decide(self, value: float, offset_ms: int) -> list[dict[str, Any]]:
        used = {"produced_bytes": int(value)} if self._type == PRODUCE else {"io_time_ns": round(value * 1e7)}
        at_ms = START_MS + offset_ms
        rows: list[dict[str, Any]] = self._engine.record(
            table([usage_row(at_ms, self._window_ms, **used)]), at_ms
        ).to_pylist()
        return rows

    def observed(self, offset_ms: int) -> tuple[float, int, float, int]:
        """O, W, the tokens, and what is owed."""
        owed = self._engine.evaluate(table([usage_row(START_MS)]), START_MS + offset_ms).to_pylist()
        row = next(row for row in owed if row["quota_type"] == self._type)
        return row["observed"], row["window_ms"], row["tokens"], row["owed_ms"]


@pytest.mark.parametrize(
    ("bound", "value", "throttle_time_ms"),
    [
        pytest.param(1000, 9999, 0, id="V1"),
        pytest.param(1000, 10000, 0, id="V2"),
        pytest.param(1000, 10001, 1, id="V5"),
        pytest.param(3000, 30001, 0, id="V6"),
        pytest.param(3000, 30002, 1, id="V6b"),
        pytest.param(1000, 10500, 500, id="V7"),
        pytest.param(1000, 20000, 10000, id="V7b"),
        pytest.param(1000, 100000, 90000, id="V7c"),
        pytest.param(2000, 20001, 0, id="V8"),
        pytest.param(2000, 20003, 1, id="V8b"),
        pytest.param(8000, 80004, 0, id="V9"),
        pytest.param(8000, 80012, 1, id="V9b"),
        pytest.param(1000000, 12582912, 2583, id="V10"),
        pytest.param(3750000, 50000000, 3333, id="V11"),
        pytest.param(1000, 12000, 2000, id="V24"),
    ],
)
def test_one_burst_from_idle(bound: float, value: int, throttle_time_ms: int) -> None:
    assert History(bound).use(value, 0) == throttle_time_ms


@pytest.mark.parametrize(("value", "raw_ms"), [pytest.param(10000.4, 0, id="V3"), pytest.param(10000.5, 0, id="V4")])
def test_a_violation_may_round_to_no_throttle_time(value: float, raw_ms: int) -> None:
    # Bytes are whole numbers here, so the fraction is tested with percent-seconds.
    (row,) = History(1000, REQUEST, caps=UNCAPPED).decide(value, 0)
    assert (row["raw_throttle_time_ms"], row["observed"] > row["bound"], row["applied"]) == (raw_ms, True, False)


@pytest.mark.parametrize(
    ("offset_ms", "throttle_time_ms", "observed", "window_ms"),
    [
        pytest.param(1, 4999, 1499.8500149985002, 10001, id="V12"),
        pytest.param(500, 4500, 1428.5714285714287, 10500, id="V13"),
        pytest.param(999, 4001, 1363.760341849259, 10999, id="V14"),
        pytest.param(1000, 5000, 1500.0, 10000, id="V15"),
        pytest.param(1500, 4500, 1428.5714285714287, 10500, id="V16"),
        pytest.param(9500, 4500, 1428.5714285714287, 10500, id="V16b"),
        pytest.param(9999, 4001, 1363.760341849259, 10999, id="V17"),
        pytest.param(10000, 5000, 1500.0, 10000, id="V18"),
        pytest.param(10500, 4500, 1428.5714285714287, 10500, id="V18b"),
        pytest.param(10999, 4001, 1363.760341849259, 10999, id="V19"),
        pytest.param(11000, 0, 0.0, 10000, id="V20"),
        pytest.param(12000, 0, 0.0, 10000, id="V20b"),
    ],
)
def test_the_window_is_a_saw_tooth(offset_ms: int, throttle_time_ms: int, observed: float, window_ms: int) -> None:
    history = History(1000)
    assert history.use(15000, 0) == 5000
    assert history.use(0, offset_ms) == throttle_time_ms
    assert history.observed(offset_ms)[:2] == (observed, window_ms)


@pytest.mark.parametrize(
    ("offset_ms", "throttle_time_ms", "observed", "window_ms"),
    [
        pytest.param(10000, 5000, 1500.0, 10000, id="V21"),
        pytest.param(10999, 4001, 1363.760341849259, 10999, id="V21b"),
        pytest.param(11000, 4000, 1363.6363636363637, 11000, id="V22"),
        pytest.param(11998, 3002, 1250.2083680613437, 11998, id="V23"),
        pytest.param(11999, 0, 0.0, 10999, id="V23b"),  # Kafka has W = 10000: it starts the empty window at 11999
    ],
)
def test_a_window_counts_until_n_windows_after_its_last_event(
    offset_ms: int, throttle_time_ms: int, observed: float, window_ms: int
) -> None:
    history = History(1000)
    assert (history.use(10000, 0), history.use(5000, 999)) == (0, 4001)
    assert history.use(0, offset_ms) == throttle_time_ms
    assert history.observed(offset_ms)[:2] == (observed, window_ms)


Step = tuple[float, int, int]
"""Value, offset in ms, throttle time."""
EVERY_SECOND_400 = [(400, second * 1000, 0) for second in range(10)]
EVERY_SECOND_4MS = [(0.4, second * 1000, 0) for second in range(10)]
SEQUENCES: dict[str, tuple[dict[str, Any], Sequence[Step]]] = {
    "V10": ({"bound": 1e6}, [(12582912, 0, 2583), (0, 250, 2333)]),
    "V24-27": (
        {"bound": 1000},
        [(12000, 0, 2000), (1000, 2000, 3000), (1000, 5000, 4000), (1000, 11000, 0), (1000, 12999, 0)],
    ),
    "V28": ({"bound": 1000}, [(1, 0, 0), (12000, 20000, 2000)]),
    "V30": ({"bound": 1000}, [(1, 0, 0), (6000, 350, 0), (6000, 1050, 1951), (1, 1999, 1003), (1, 2050, 1953)]),
    "V31": ({"bound": 500}, [*EVERY_SECOND_400, (2300, 10500, 2100)]),
    "V32": (
        {"bound": 500},
        [*EVERY_SECOND_400, (2300, 10500, 2100), *((400, 12600 + second * 1000, 1200) for second in range(8))],
    ),
    "V35": (
        {"bound": 1000},
        [(1500, second * 1000, x) for second, x in enumerate([0] * 6 + [500, 2000, 3500, 5000, 6500, 6500])],
    ),
    "V43": (
        {"bound": 1, "quota_type": REQUEST},
        [(10, 0, 0), (0.001, 0, 1), (0.5, 0, 501), (1, 0, 1000), (100, 0, 1000)],
    ),
    "V44": ({"bound": 1, "quota_type": REQUEST, "window_ms": 2000}, [(1000, 0, 2000)]),
    "V45": ({"bound": 0.01, "quota_type": REQUEST}, [(0.1, 0, 0), (0.05, 0, 1000)]),
    "V46": ({"bound": 50, "quota_type": REQUEST}, [(200, 0, 0), (200, 0, 0), (200, 0, 1000), (200, 0, 1000)]),
    "V47": ({"bound": 10, "quota_type": REQUEST}, [(60, 0, 0), (50, 0, 1000), (0, 0, 1000), (1, 100, 1000)]),
    "V48": ({"bound": 1, "quota_type": REQUEST}, [*EVERY_SECOND_4MS, (6.71, 10500, 210)]),
    "V49": (
        {"bound": 1, "quota_type": REQUEST},
        [*EVERY_SECOND_4MS, (6.71, 10500, 210), *((0.4, 10710 + second * 1000, 400) for second in range(10))],
    ),
    "V51": ({"bound": 50, "quota_type": REQUEST, "num_samples": 1}, [(5, 0, 99)]),
    "V52": ({"bound": 100, "num_samples": 10, "window_ms": 30000}, [(30000, 0, 30000), (1000, 0, 40000)]),
    "V53": ({"bound": 1000, "num_samples": 1}, [(1, 0, 0), (1, 0, 1), (0, 1, 1), (0, 500, 0), (600, 1000, 0)]),
    "V58": ({"bound": 20, "num_samples": 2}, [(20, 0, 0), (1, 0, 50), (1, 0, 100)]),
    "V59-62": (
        {"bound": 20, "num_samples": 2},
        [(20, 0, 0), (1, 999, 0), (1, 1000, 100), (1, 1999, 0), (1, 2000, 0), (1, 2998, 0), (1, 2999, 0)],
    ),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_of_requests(name: str) -> None:
    quota, steps = SEQUENCES[name]
    history = History(**quota)
    assert [history.use(value, offset_ms) for value, offset_ms, _ in steps] == [x for _, _, x in steps]


def test_samples_stay_when_the_bound_changes() -> None:
    history = History(2000)
    assert history.use(27500, 0) == 3750, "V54"
    history.set_bound(3000)
    assert history.use(0, 0) == 0, "V55"
    history.set_bound(500)
    assert history.use(0, 0) == 45000, "V56"
    history.set_bound(4000, user="<default>")
    assert history.use(11000, 0) == 0, "V57"
    assert history.observed(0)[0] == 3850.0


@pytest.mark.parametrize(
    ("bound", "value", "kafka_int"),
    [
        pytest.param(1, 2147493, 2147483000, id="V36"),
        pytest.param(1, 2147494, -2147483296, id="V37"),
        pytest.param(1, 3000000, -1294977296, id="V38"),
        pytest.param(1, 5000000, 705022704, id="V39"),
        pytest.param(1, 100000000, 1215742192, id="V40"),
        pytest.param(10, 100000000, 1410055408, id="V41"),
        pytest.param(1000, 100000000, 99990000, id="V42"),
    ],
)
def test_long_throttle_times_are_whole_where_kafka_wraps_them(bound: float, value: int, kafka_int: int) -> None:
    throttle_time_ms = History(bound).use(value, 0)
    assert throttle_time_ms > 0
    assert as_kafka_int(throttle_time_ms) == kafka_int


def test_the_bucket_is_kafkas() -> None:
    history = History(10)
    history.use(200, 0)
    assert history.observed(0)[2] == -90.0, "V107: 110 at first, 9000 ms owed"
    history.use(10, 0)
    assert history.observed(0)[2:] == (-100.0, 11000)  # V107: 10 000 by the bucket; by the rate it is more


AT_MS = 1_700_000_040_000


def test_a_debt_is_never_larger_than_ten_bursts() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=10**9))
    assert owed(engine, AT_MS)["tokens"] == -110_000.0
    engine.load_quotas(QuotaSnapshot.from_rows([quota_row(producer_byte_rate=10)], 2))
    assert owed(engine, AT_MS)["tokens"] == -1100.0


def test_buckets_put_back_owe_what_they_owed() -> None:
    rows = [quota_row(producer_byte_rate=1000), quota_row("<default>", "<default>", request_percentage=5)]
    engine = loaded(*rows, scope="broker")
    used = [usage_row(AT_MS, broker_id=broker, produced_bytes=10**5, io_time_ns=10**10) for broker in ("1", "2")]
    decide(engine, AT_MS, *used, usage_row(AT_MS, user="idle", produced_bytes=0))
    stored = engine.buckets()
    assert stored.num_rows == 4
    other = loaded(*rows, scope="broker")
    decide(other, AT_MS, usage_row(AT_MS, broker_id="1", client_id="other", produced_bytes=77))
    other.restore_buckets(stored)
    look = table(used)
    for column in ("tokens", "bound"):
        assert other.evaluate(look, AT_MS + 700)[column].equals(engine.evaluate(look, AT_MS + 700)[column])
    assert other.buckets().sort_by("broker_id").equals(stored.sort_by("broker_id"))


def test_a_debt_without_a_bound_is_kept_for_the_next_bound() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=11_005))
    engine.load_quotas(QuotaSnapshot.from_rows([], 2))
    decide(engine, AT_MS + 60_000)
    assert engine.buckets()["tokens"].to_pylist() == [-5.0]
    assert (owed(engine, AT_MS + 60_000)["tokens"], owed(engine, AT_MS + 60_000)["owed_ms"]) == (None, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quota_type": "disk"}, "unknown quota type 'disk'; known are producer_byte_rate, consumer_byte_rate"),
        ({"tokens": None}, "column 'tokens' has nulls in 1 rows"),
    ],
)
def test_buckets_that_can_not_be_are_refused(change: dict[str, Any], message: str) -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    row = {"broker_id": "", "sensor_user": "u", "sensor_client_id": "", "tokens": -1.0, "refilled_at_ms": AT_MS}
    stored = pa.Table.from_pylist([{**row, "quota_type": "producer_byte_rate", **change}], engine.buckets().schema)
    with pytest.raises(InvalidUsage, match=message):
        engine.restore_buckets(stored)


@pytest.mark.parametrize(
    ("tokens", "amount", "left"),
    [
        (110.0, 220.0, -110.0),
        (110.0, 221.0, -110.0),
        (110.0, 219.0, -109.0),
        (-110.0, 1.0, -110.0),
        (-300.0, 5.0, -300.0),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_old_usage_leads_to_a_debt_of_one_burst_and_lifts_no_larger_one(
    tokens: float, amount: float, left: float, is_late: bool
) -> None:
    buckets = TokenBuckets(11, 1000)
    buckets.grow(1)
    one, bound = np.array([0]), np.array([10.0])
    buckets.restore(one, np.array([tokens]), np.array([100_000]))
    charge = buckets.charge_late if is_late else buckets.charge
    charge(one, np.array([amount]), bound, 100_000, MAX_DEBT_BURSTS_OF_OLD)
    assert buckets.tokens_at(one, bound, 100_000).tolist() == [left]


def test_late_usage_does_not_refill_the_bucket() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=11_000))
    decide(engine, AT_MS + 60_000, usage_row(AT_MS + 10_000, produced_bytes=70_000))
    assert owed(engine, AT_MS + 60_000)["tokens"] == 0.0 - 70_000.0 + 60_000.0  # not 11 000 - 70 000


def test_a_refill_does_not_go_back_in_time() -> None:
    engine = loaded(quota_row(producer_byte_rate=1000))
    decide(engine, AT_MS, usage_row(AT_MS, produced_bytes=5000))
    decide(engine, AT_MS, usage_row(AT_MS - 5000, produced_bytes=1000))
    assert owed(engine, AT_MS)["tokens"] == 11_000.0 - 5000.0 - 1000.0
