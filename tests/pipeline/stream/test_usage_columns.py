"""Usage as columns: parts of a batch merged, event times after a limit, and which dead letters are kept."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stream.usage_columns import (
    DEAD_LETTER_SCHEMA,
    LARGEST_SUM,
    MORE_REFUSED,
    USAGE_SCHEMA,
    CollectedBatch,
    DeadLetter,
    EventsAhead,
    Refused,
    causes_of,
    fold_clients,
    letter_rows,
    letters_of_elements,
    limit_event_times,
    merge_batches,
    merge_usage,
)
from tests.pipeline.stream.messages import array, counts, event, message, read, usage


def row(**columns: int | None) -> dict[str, object]:
    keys = {"sample_start_ms": 1, "broker_id": "", "user": "a", "client_id": ""}
    return dict.fromkeys(USAGE_SCHEMA.names) | keys | columns


def test_a_merged_sum_is_null_only_if_it_is_null_in_every_row_and_stops_at_the_largest() -> None:
    tables = [
        pa.Table.from_pylist([row(produced_bytes=LARGEST_SUM, fetched_bytes=None, last_event_ms=5)], USAGE_SCHEMA),
        pa.Table.from_pylist([row(produced_bytes=LARGEST_SUM, io_time_ns=0, last_event_ms=3)] * 3, USAGE_SCHEMA),
    ]
    assert merge_usage(tables).to_pylist() == [row(produced_bytes=LARGEST_SUM, io_time_ns=0, last_event_ms=5)]


def test_parts_merged_are_the_batch_read_at_once() -> None:
    values = [message(), array(event(), 7), None, b"no JSON", message(user="bob")]
    parts = [read(value) for value in values]
    whole = read(*values)
    assert (usage(merge_batches(parts)), counts(merge_batches(parts))) == (usage(whole), counts(whole))


WINDOW_MS = 1_000
LIMIT_MS = 10_500


def timed_row(last_ms: int, user: str = "u", produced_bytes: int | None = 1, events: int = 1, clamped: int = 0) -> Any:
    return {
        **dict.fromkeys(USAGE_SCHEMA.names),
        "sample_start_ms": last_ms - last_ms % WINDOW_MS,
        "broker_id": "1",
        "user": user,
        "client_id": "c",
        "produced_bytes": produced_bytes,
        "request_count": events,
        "event_count": events,
        "clamped_count": clamped,
        "last_event_ms": last_ms,
    }


def batch_of(*rows: Any) -> CollectedBatch:
    usage = pa.Table.from_pylist(list(rows), USAGE_SCHEMA)
    return CollectedBatch(
        usage=usage,
        dead_letters=DEAD_LETTER_SCHEMA.empty_table(),
        good_count=pc.sum(usage["event_count"]).as_py() or 0,
        clamped_count=pc.sum(usage["clamped_count"]).as_py() or 0,
        ignored_count=0,
        dead_count=0,
        newest_event_ms=pc.max(usage["last_event_ms"]).as_py(),
    )


@pytest.mark.parametrize("rows", [[], [timed_row(LIMIT_MS)], [timed_row(0), timed_row(LIMIT_MS - 1, clamped=1)]])
def test_a_batch_without_events_after_the_limit_is_left_as_it_is(rows: list[Any]) -> None:
    batch = batch_of(*rows)
    assert limit_event_times(batch, LIMIT_MS, WINDOW_MS) == (batch, None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        #  last, events, clamped      start, last, clamped
        ((LIMIT_MS + 1, 3, 0), (10_000, LIMIT_MS, 1)),
        ((LIMIT_MS + 1, 3, 2), (10_000, LIMIT_MS, 2)),
        ((10_999, 3, 0), (10_000, LIMIT_MS, 1)),
        ((11_000, 3, 0), (10_000, LIMIT_MS, 3)),
        ((11_000, 3, 2), (10_000, LIMIT_MS, 3)),
        ((2**62, 3, 3), (10_000, LIMIT_MS, 3)),
        ((2**63 - 1, 1, 0), (10_000, LIMIT_MS, 1)),
    ],
)
def test_a_row_after_the_limit_is_set_back_to_it(before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    last_ms, events, clamped = before
    batch = batch_of(timed_row(last_ms, events=events, clamped=clamped), timed_row(LIMIT_MS, user="other"))
    limited, ahead = limit_event_times(batch, LIMIT_MS, WINDOW_MS)
    (changed,) = limited.usage.filter(pc.field("user") == "u").to_pylist()
    assert (changed["sample_start_ms"], changed["last_event_ms"], changed["clamped_count"]) == after
    assert (limited.clamped_count, limited.newest_event_ms) == (after[2], LIMIT_MS)
    assert (limited.good_count, changed["event_count"]) == (events + 1, events)
    assert ahead == EventsAhead(after[2], last_ms - LIMIT_MS, "1", "u", "c")


def test_the_usage_of_folded_clients_is_summed_as_that_of_one() -> None:
    rows = [{**event(), "client_id": name} for name in ("a", "b", "c", "b")]
    batch = read(array(*rows))
    names = batch.usage["client_id"].to_pylist()
    folded = fold_clients(batch, np.array([name != "a" for name in names]))
    counted = zip(folded.usage["client_id"].to_pylist(), folded.usage["event_count"].to_pylist(), strict=True)
    assert sorted(counted) == [("<other>", 3), ("a", 1)]
    assert folded.folded_count == 3
    assert fold_clients(batch, np.zeros(len(names), np.bool_)) is batch


def test_rows_that_fall_into_one_window_are_summed_and_a_sum_stops_at_the_largest() -> None:
    rows = [timed_row(10_000 + 1_000 * number, produced_bytes=LARGEST_SUM) for number in range(2_000)]
    limited, _ = limit_event_times(
        batch_of(*rows, timed_row(10_001, user="n", produced_bytes=None)), LIMIT_MS, WINDOW_MS
    )
    by_user = {one["user"]: one for one in limited.usage.to_pylist()}
    assert limited.usage.num_rows == 2
    assert (by_user["u"]["produced_bytes"], by_user["u"]["event_count"]) == (LARGEST_SUM, 2_000)
    assert by_user["n"]["produced_bytes"] is None
    assert limited.usage.schema == USAGE_SCHEMA


events = st.lists(
    st.builds(
        timed_row,
        last_ms=st.integers(8_000, 13_000) | st.sampled_from([LIMIT_MS - 1, LIMIT_MS, LIMIT_MS + 1, 11_000, 2**62]),
        user=st.sampled_from("ab"),
        produced_bytes=st.none() | st.integers(0, 9),
    )
)


@given(events)
def test_the_sums_are_those_of_events_sent_at_the_limit(sent: list[Any]) -> None:
    in_time = [timed_row(min(one["last_event_ms"], LIMIT_MS), one["user"], one["produced_bytes"]) for one in sent]
    collected = batch_of() if not sent else batch_of(*merge_usage([batch_of(*sent).usage]).to_pylist())
    limited, ahead = limit_event_times(collected, LIMIT_MS, WINDOW_MS)
    wanted = merge_usage([batch_of(*in_time).usage])
    order = [("sample_start_ms", "ascending"), ("user", "ascending")]
    counts = ["clamped_count"]
    assert limited.usage.drop_columns(counts).sort_by(order).equals(wanted.drop_columns(counts).sort_by(order))
    after = sum(one["last_event_ms"] > LIMIT_MS for one in sent)
    in_a_later_window = sum(one["last_event_ms"] >= 11_000 for one in sent)
    assert in_a_later_window <= limited.clamped_count <= after
    assert (ahead is None) == (after == 0)
    assert limited.clamped_count == (pc.sum(limited.usage["clamped_count"]).as_py() or 0)


NO_OBJECT = "element must be a JSON object"
MESSAGES = pa.table({"appended_at_ms": [7, 8], "partition": [0, 1], "offset": [2**40, 5]})


@pytest.mark.parametrize(
    ("elements", "wanted"),
    [
        ((4, 6), [(4, ""), (6, "")]),
        ((4, 6, 7), [(4, ""), (6, ""), (7, "")]),
        ((4, 6, 7, 9), [(4, ""), (6, ""), (7, "; 1 more refused elements, up to element 9")]),
        (range(1_000), [(0, ""), (1, ""), (2, "; 997 more refused elements, up to element 999")]),
    ],
    ids=["fewer", "as many", "one more", "far more"],
)
def test_the_last_dead_letter_that_is_kept_says_how_many_more_there_were(elements: Any, wanted: Any) -> None:
    def values_of(indexes: Sequence[int]) -> list[bytes]:
        assert len(indexes) <= 3
        return [str(index).encode() for index in indexes]

    letters = letters_of_elements(8, [Refused(index, NO_OBJECT) for index in elements], 3, values_of)
    assert letters == [DeadLetter(8, index, NO_OBJECT + more, str(index).encode()) for index, more in wanted]


def test_refused_elements_are_counted_by_cause_and_those_without_a_row_apart() -> None:
    causes = [NO_OBJECT, "junk", f"{NO_OBJECT}; 4 more refused elements, up to element 9"]
    rows = letter_rows(MESSAGES, [DeadLetter(0, None, cause, b"") for cause in causes])
    assert causes_of(rows, 7) == {NO_OBJECT: 2, "junk": 1, MORE_REFUSED: 4}
    assert causes_of(rows, 3) == {NO_OBJECT: 2, "junk": 1}
