"""Which quotas hold for a client, and what a lower bound would do to clients as they are."""

from typing import Any

import pyarrow as pa
import pytest

from quota.effective import Effective, bound_warnings, effective, large_requests, name_warnings, standing_changes
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import loaded, quota_row, table, usage_row

PRODUCER, CONSUMER, REQUEST = range(3)


def clients(*names: tuple[str, str]) -> pa.Table:
    users, client_ids = zip(*names, strict=True) if names else ((), ())
    return pa.table({"user": pa.array(users, pa.string()), "client_id": pa.array(client_ids, pa.string())})


def answer_of(*rows: dict[str, Any], client_id: str = "etl", others: tuple[tuple[str, str], ...] = ()) -> Effective:
    return effective(QuotaSnapshot.from_rows(rows, 1), "alice", client_id, clients(*others))


def test_all_eight_levels_are_listed_in_order_with_the_rows_there_are() -> None:
    rows = (quota_row("alice", "<default>", producer_byte_rate=1.0), quota_row("", "etl", mode="exempt"))
    levels = answer_of(*rows).levels
    assert [int(row.level) for row in levels] == list(range(1, 9))
    assert [int(row.level) for row in levels if row.quota] == [2, 7]
    assert [(row.user, row.client_id) for row in levels[:3]] == [
        ("alice", "etl"),
        ("alice", "<default>"),
        ("alice", ""),
    ]


def test_each_quota_type_matches_a_row_of_its_own() -> None:
    rows = (
        quota_row("alice", "etl", producer_byte_rate=1.0),
        quota_row("alice", "", consumer_byte_rate=2.0),
        quota_row("", "etl", producer_byte_rate=3.0),
    )
    answer = answer_of(*rows)
    assert [(one.level, one.bound) for one in answer.by_type] == [(1, 1.0), (3, 2.0), (None, None)]
    assert [row.matched for row in answer.levels if row.matched] == [("producer_byte_rate",), ("consumer_byte_rate",)]


def test_other_clients_that_count_in_the_same_sensor_are_named() -> None:
    rows = (quota_row("alice", "", producer_byte_rate=1.0), quota_row("alice", "own", producer_byte_rate=1.0))
    others = (("alice", "etl"), ("alice", "web"), ("alice", "own"), ("bob", "etl"))
    producer = answer_of(*rows, others=others).by_type[PRODUCER]
    assert (producer.sensor_user, producer.sensor_client_id) == ("alice", "")
    assert producer.shared_with == (("alice", "web"),)


NOW_MS = 1_700_000_000_000


def warnings(
    new: dict[str, Any], *rows: dict[str, Any], old: dict[str, Any] | None = None, mode: str = "enforce"
) -> list[str]:
    rows = rows or (usage_row(NOW_MS, produced_bytes=0),)
    usage = table(rows).append_column("request_count", pa.array([row.get("request_count", 0) for row in rows]))
    before = QuotaSnapshot.from_rows([quota_row(**old)] if old else [], 0)
    after = QuotaSnapshot.from_rows([quota_row(**new, mode=mode)], 1)
    moved = standing_changes(table([usage_row(NOW_MS)]), before, after)
    return bound_warnings(moved, usage, loaded(quota_row(**new, mode=mode)))


@pytest.mark.parametrize(
    ("bound", "found"),
    [
        (300.0, []),
        (
            299.0,
            [
                "one produce request of u/c had at least 300.0 B, 1.0 s of its producer_byte_rate 299.0 B/s: "
                "set max.request.size to at most 299, or raise the quota to 300.0 B/s"
            ],
        ),
    ],
)
def test_a_bound_below_one_request_is_warned_of_and_one_below_a_second_is_not(bound: float, found: list[str]) -> None:
    rows = [
        usage_row(NOW_MS, produced_bytes=600, request_count=3, broker_id="1"),
        usage_row(NOW_MS + 1, produced_bytes=300, request_count=0, broker_id="2"),
        usage_row(NOW_MS - 9_000, produced_bytes=250, request_count=1),
    ]
    assert warnings({"producer_byte_rate": bound}, *rows) == found


@pytest.mark.parametrize(
    ("bound", "mode", "request_count", "found"),
    [
        (
            100.0,
            "enforce",
            1,
            [
                "one fetch of u/c had at least 500.0 B, 5.0 s of its consumer_byte_rate 100.0 B/s: "
                "set fetch.max.bytes to at most 100, or raise the quota to 500.0 B/s"
            ],
        ),
        (500.0, "enforce", 1, []),
        (100.0, "enforce", 5, []),
        (100.0, "enforce", 0, []),
        (100.0, "shadow", 1, []),
    ],
    ids=["above the bound", "equal to it", "five small ones", "scraped", "in shadow mode"],
)
def test_a_request_of_more_than_a_second_of_the_bound_is_named_with_what_to_do(
    bound: float, mode: str, request_count: int, found: list[str]
) -> None:
    usage = table([usage_row(NOW_MS, fetched_bytes=500)]).append_column("request_count", pa.array([request_count]))
    quotas = QuotaSnapshot.from_rows([quota_row(consumer_byte_rate=bound, mode=mode)], 1)
    assert large_requests(usage, quotas) == found


@pytest.mark.parametrize(("times", "is_found"), [(40, False), (42, True)])
def test_a_wait_longer_than_a_request_may_take_is_warned_of(times: int, is_found: bool) -> None:
    found = warnings({"producer_byte_rate": 1_000.0}, usage_row(NOW_MS, produced_bytes=1_000 * times))
    assert any("would make it wait" in text and text.endswith("requests expire at 30 s") for text in found) == is_found


@pytest.mark.parametrize(("times", "is_found"), [(310, False), (312, True)])
def test_a_wait_longer_than_a_consumer_may_rest_is_warned_of(times: int, is_found: bool) -> None:
    (found,) = warnings({"consumer_byte_rate": 1_000.0}, usage_row(NOW_MS, fetched_bytes=1_000 * times))
    assert found.endswith(", and a consumer leaves its group at 5 min") == is_found


@pytest.mark.parametrize("mode", ["shadow", "exempt"])
def test_a_quota_that_is_not_enforced_stops_nobody(mode: str) -> None:
    assert warnings({"producer_byte_rate": 1.0}, usage_row(NOW_MS, produced_bytes=1_000), mode=mode) == []


def test_a_bound_that_is_raised_is_left_alone() -> None:
    row = usage_row(NOW_MS, produced_bytes=1_000)
    assert warnings({"producer_byte_rate": 2.0}, row, old={"producer_byte_rate": 1.0}) == []
    assert warnings({"producer_byte_rate": 1.0}, row, old={"producer_byte_rate": 2.0}) != []


@pytest.mark.parametrize(
    ("entity", "found"),
    [
        (("alice", ""), []),
        (("alice", "etl"), []),
        (("<default>", "<default>"), []),
        (("alcie", ""), ["user 'alcie' was never seen; did you mean alice?"]),
        (("", "elt"), ["client-id 'elt' was never seen; did you mean etl?"]),
        (("zoe", "etl"), ["user 'zoe' was never seen"]),
    ],
)
def test_a_name_that_no_client_has_is_warned_of(entity: tuple[str, str], found: list[str]) -> None:
    assert name_warnings(entity, [("alice", "etl"), ("bob", "app")]) == found
