"""The client-ids of a user beyond the limit of new ones in an hour."""

import pyarrow as pa
import pytest

from pipeline.stream.usage_columns import MOST_NEW_NAMES, NewNames
from quota.snapshot import QuotaSnapshot

NO_QUOTAS = QuotaSnapshot(0, ())
HOUR_MS = 3_600_000


def clients(user: str, *client_ids: str) -> pa.Table:
    rows = [{"user": user, "client_id": name} for name in client_ids]
    return pa.Table.from_pylist(rows, pa.schema([("user", pa.string()), ("client_id", pa.string())]))


def made_up(first: int, count: int) -> list[str]:
    return [f"id-{number}" for number in range(first, first + count)]


def too_many(names: NewNames, user: str, client_ids: list[str], now_ms: int = 0) -> list[str]:
    folded = names.too_many(clients(user, *client_ids), NO_QUOTAS, now_ms)
    return [client_id for client_id, is_folded in zip(client_ids, folded, strict=True) if is_folded]


@pytest.mark.parametrize(
    ("count", "beyond"),
    [(0, 0), (MOST_NEW_NAMES - 1, 0), (MOST_NEW_NAMES, 0), (MOST_NEW_NAMES + 1, 1), (2 * MOST_NEW_NAMES, 1_000)],
)
def test_what_is_beyond_the_limit_is_the_last_that_came(count: int, beyond: int) -> None:
    names = made_up(0, count)
    assert too_many(NewNames(), "alice", names) == names[count - beyond :]


def test_a_name_that_was_seen_stays_and_a_user_does_not_take_another_ones_names() -> None:
    names = NewNames()
    assert too_many(names, "alice", made_up(0, MOST_NEW_NAMES)) == []
    assert too_many(names, "alice", ["id-0", "new", "id-999", "new"]) == ["new", "new"]
    assert too_many(names, "bob", ["new"]) == []


def test_a_new_hour_has_new_names_and_forgets_what_was_not_seen_in_the_one_before() -> None:
    names = NewNames()
    too_many(names, "alice", made_up(0, MOST_NEW_NAMES))
    assert too_many(names, "alice", ["late"], HOUR_MS - 1) == ["late"]
    assert too_many(names, "alice", ["id-0", *made_up(5_000, MOST_NEW_NAMES)], HOUR_MS) == []
    assert too_many(names, "alice", ["id-0", "id-1"], HOUR_MS) == [], "seen in the hour before"
    assert too_many(names, "alice", made_up(5_000, MOST_NEW_NAMES), 2 * HOUR_MS) == []
    assert too_many(names, "alice", ["id-0", "id-1"], 3 * HOUR_MS) == []
    assert too_many(names, "alice", made_up(9_000, MOST_NEW_NAMES), 3 * HOUR_MS) == ["id-9998", "id-9999"]


@pytest.mark.parametrize("user", ["alice", "<default>", ""])
def test_a_name_with_a_row_of_its_own_is_never_beyond(user: str) -> None:
    rows = [{"user": user, "client_id": "etl", "producer_byte_rate": 1.0}]
    names, quotas = NewNames(), QuotaSnapshot.from_rows(rows, version=1)
    folded = names.too_many(clients("alice", *made_up(0, MOST_NEW_NAMES + 1), "etl"), quotas, 0)
    assert folded.tolist() == [False] * MOST_NEW_NAMES + [True, False]
