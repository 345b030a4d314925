from typing import Any

import pyarrow as pa
import pytest

from quota.effective import Effective, effective
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row

PRODUCER, CONSUMER, REQUEST = range(3)


def clients(*names: tuple[str, str]) -> pa.Table:
    users, client_ids = zip(*names, strict=True) if names else ((), ())
    return pa.table({"user": pa.array(users, pa.string()), "client_id": pa.array(client_ids, pa.string())})


def found(*rows: dict[str, Any], client_id: str = "etl", others: tuple[tuple[str, str], ...] = ()) -> Effective:
    return effective(QuotaSnapshot.from_rows(rows, 1), "alice", client_id, clients(*others))


def test_all_eight_levels_are_listed_in_order_with_the_rows_there_are() -> None:
    rows = (quota_row("alice", "<default>", producer_byte_rate=1.0), quota_row("", "etl", mode="exempt"))
    levels = found(*rows).levels
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
    answer = found(*rows)
    assert [(one.level, one.bound) for one in answer.by_type] == [(1, 1.0), (3, 2.0), (None, None)]
    assert [row.matched for row in answer.levels if row.matched] == [("producer_byte_rate",), ("consumer_byte_rate",)]


def test_other_clients_that_count_in_the_same_sensor_are_named() -> None:
    rows = (quota_row("alice", "", producer_byte_rate=1.0), quota_row("alice", "own", producer_byte_rate=1.0))
    others = (("alice", "etl"), ("alice", "web"), ("alice", "own"), ("bob", "etl"))
    producer = found(*rows, others=others).by_type[PRODUCER]
    assert (producer.sensor_user, producer.sensor_client_id) == ("alice", "")
    assert producer.shared_with == (("alice", "web"),)


def test_a_quota_on_a_client_id_is_shared_across_users() -> None:
    others = (("bob", "etl"), ("carol", "etl"), ("bob", "web"))
    producer = found(quota_row("", "etl", producer_byte_rate=1.0), others=others).by_type[PRODUCER]
    assert (producer.level, producer.shared_with) == (7, (("bob", "etl"), ("carol", "etl")))


def test_a_shadow_quota_shares_its_sensor_as_an_enforced_one() -> None:
    rows = (quota_row("alice", "", producer_byte_rate=1.0, mode="shadow"),)
    producer = found(*rows, others=(("alice", "web"), ("bob", "etl"))).by_type[PRODUCER]
    assert (producer.mode, producer.bound, producer.shared_with) == ("shadow", 1.0, (("alice", "web"),))


@pytest.mark.parametrize(("mode", "bound"), [("enforce", 5.0), ("exempt", None)])
def test_an_exempt_row_matches_without_a_bound(mode: str, bound: float | None) -> None:
    rows = (quota_row("alice", "", producer_byte_rate=5.0, mode=mode), quota_row("<default>", producer_byte_rate=9.0))
    producer = found(*rows).by_type[PRODUCER]
    assert (producer.level, producer.mode, producer.bound) == (3, mode, bound)


def test_without_a_client_id_no_level_names_one() -> None:
    rows = (quota_row("alice", "", producer_byte_rate=1.0), quota_row("<default>", "", consumer_byte_rate=1.0))
    levels = found(*rows, client_id="").levels
    assert [int(row.level) for row in levels if row.quota] == [3, 6]


def test_without_quotas_nothing_holds() -> None:
    answer = found()
    assert [one.level for one in answer.by_type] == [None, None, None]
    assert not any(row.quota for row in answer.levels)
