"""Usage as columns: parts merged, event times after a limit, dead letters that are kept, client-ids beyond a limit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.stream.usage_columns import (
    LARGEST_SUM,
    MORE_REFUSED,
    MOST_NEW_NAMES,
    USAGE_SCHEMA,
    CollectedBatch,
    DeadLetter,
    EventsAhead,
    NewNames,
    Refused,
    causes_of,
    fold_clients,
    letter_rows,
    letters_of_elements,
    limit_event_times,
    merge_usage,
)
from quota.snapshot import QuotaSnapshot
from quota.tenants import read_tenants
from tests.pipeline.stream.messages import array, event, read


def row(**columns: int | str | None) -> dict[str, object]:
    keys = {"sample_start_ms": 1, "broker_id": "", "user": "a", "client_id": ""}
    return dict.fromkeys(USAGE_SCHEMA.names) | keys | columns


def test_a_merged_sum_is_null_only_if_each_row_is_and_stops_at_the_largest() -> None:
    tables = [
        pa.Table.from_pylist([row(produced_bytes=LARGEST_SUM, fetched_bytes=None, last_event_ms=5)], USAGE_SCHEMA),
        pa.Table.from_pylist([row(produced_bytes=LARGEST_SUM, io_time_ns=0, last_event_ms=3)] * 3, USAGE_SCHEMA),
    ]
    assert merge_usage(tables).to_pylist() == [row(produced_bytes=LARGEST_SUM, io_time_ns=0, last_event_ms=5)]


WINDOW_MS = 1_000
LIMIT_MS = 10_500


def batch_of(*rows: Any) -> CollectedBatch:
    """A batch with these rows of usage: user, newest event, events, clamped events."""
    keys = {"broker_id": "1", "client_id": "c"}
    names = ("user", "last_event_ms", "event_count", "clamped_count")
    table = [
        row(**keys, **dict(zip(names, one, strict=True)), sample_start_ms=one[1] // WINDOW_MS * WINDOW_MS)
        for one in rows
    ]
    usage = pa.Table.from_pylist(table, USAGE_SCHEMA)
    good, clamped = (pc.sum(usage[name]).as_py() for name in names[2:])
    newest_ms = pc.max(usage["last_event_ms"]).as_py()
    return CollectedBatch(usage=usage, good_count=good, clamped_count=clamped, newest_event_ms=newest_ms)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        #  last, events, clamped: clamped
        ((LIMIT_MS + 1, 3, 0), 1),
        ((LIMIT_MS + 1, 3, 2), 2),
        ((10_999, 3, 0), 1),
        ((11_000, 3, 0), 3),
        ((11_000, 3, 2), 3),
        ((2**62, 3, 3), 3),
        ((2**63 - 1, 1, 0), 1),
    ],
)
def test_a_row_after_the_limit_is_set_back_to_it(before: tuple[int, int, int], after: int) -> None:
    last_ms, events, clamped = before
    batch = batch_of(("u", last_ms, events, clamped), ("other", LIMIT_MS, 1, 0))
    limited, ahead = limit_event_times(batch, LIMIT_MS, WINDOW_MS)
    (changed,) = limited.usage.filter(pc.field("user") == "u").to_pylist()
    assert (changed["sample_start_ms"], changed["last_event_ms"], changed["clamped_count"]) == (10_000, LIMIT_MS, after)
    assert (limited.clamped_count, limited.newest_event_ms) == (after, LIMIT_MS)
    assert (limited.good_count, changed["event_count"]) == (events + 1, events)
    assert ahead == EventsAhead(after, last_ms - LIMIT_MS, "1", "u", "c")


def test_the_usage_of_folded_clients_is_summed_as_that_of_one() -> None:
    rows = [{**event(), "client_id": name} for name in ("a", "b", "c", "b")]
    batch = read(array(*rows))
    names = batch.usage["client_id"].to_pylist()
    folded = fold_clients(batch, np.array([name != "a" for name in names]), QuotaSnapshot(0, ()))
    counted = zip(folded.usage["client_id"].to_pylist(), folded.usage["event_count"].to_pylist(), strict=True)
    assert sorted(counted) == [("<other>", 3), ("a", 1)]
    assert folded.folded_count == 3
    assert fold_clients(batch, np.zeros(len(names), np.bool_), QuotaSnapshot(0, ())) is batch


def test_a_folded_client_keeps_the_beginning_by_which_a_tenant_has_it() -> None:
    patterns = {"client_id_patterns": ["x-*", "x-y-*", "one"], "producer_byte_rate": 1.0}
    tenants = read_tenants([{"tenant": "team", **patterns}], 0)
    batch = read(array(*({**event(), "client_id": name} for name in ("x-1", "x-2", "x-y-1", "z", "one"))))
    folded = fold_clients(batch, np.ones(5, np.bool_), QuotaSnapshot(0, (), tenants=tenants))
    assert sorted(set(folded.usage["client_id"].to_pylist())) == ["<other>", "x-<other>", "x-y-<other>"]
    names, quotas = NewNames(), QuotaSnapshot(0, (), tenants=tenants)
    found = names.too_many(clients("alice", *made_up(0, MOST_NEW_NAMES), "one", "two"), quotas, 0)
    assert found.tolist() == [False] * (MOST_NEW_NAMES + 1) + [True], "a tenant names this one"


NO_OBJECT = "element must be a JSON object"
MESSAGES = pa.table({"appended_at_ms": [7, 8], "partition": [0, 1], "offset": [2**40, 5]})


@pytest.mark.parametrize(
    ("elements", "more"),
    [([4, 6], ""), ([4, 6, 7], ""), ([4, 6, 7, 9], "; 1 more refused elements, up to element 9")],
)
def test_the_last_dead_letter_says_how_many_more_there_were(elements: list[int], more: str) -> None:
    def values_of(indexes: Sequence[int]) -> list[bytes]:
        assert len(indexes) <= 3
        return [str(index).encode() for index in indexes]

    *letters, last = letters_of_elements(8, [Refused(index, NO_OBJECT) for index in elements], 3, values_of)
    kept = elements[:3]
    assert letters == [DeadLetter(8, index, NO_OBJECT, str(index).encode()) for index in kept[:-1]]
    assert last == DeadLetter(8, kept[-1], NO_OBJECT + more, str(kept[-1]).encode())


def test_refused_elements_are_counted_by_cause_and_those_without_a_row_apart() -> None:
    causes = [NO_OBJECT, "junk", f"{NO_OBJECT}; 4 more refused elements, up to element 9"]
    rows = letter_rows(MESSAGES, [DeadLetter(0, None, cause, b"") for cause in causes])
    assert causes_of(rows, 7) == {NO_OBJECT: 2, "junk": 1, MORE_REFUSED: 4}
    assert causes_of(rows, 3) == {NO_OBJECT: 2, "junk": 1}


# The client-ids of a user beyond the limit of new ones in an hour.


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


def test_a_name_that_was_seen_stays_until_it_was_not_seen_in_the_hour_before() -> None:
    names = NewNames()
    assert too_many(names, "alice", made_up(0, MOST_NEW_NAMES)) == []
    assert too_many(names, "alice", ["id-0", "late", "id-999", "late"], HOUR_MS - 1) == ["late", "late"]
    assert too_many(names, "bob", ["late"]) == [], "a user does not take another one's names"
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
