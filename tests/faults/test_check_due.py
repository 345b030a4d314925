"""Which looks the judge takes for looks at the end of a throttle."""

from typing import cast

import pytest

from tests.faults.books import Books
from tests.faults.case import Case
from tests.faults.check_due import is_end_of, may_be_left_to_end, was_taken_up, watch
from tests.faults.cut import Batch
from tests.faults.handmade import T_MS, evidence
from tests.faults.held import Held
from tests.faults.reign import Reign
from tests.faults.rules import Rules
from tests.faults.verdict import Verdict

_BEGIN_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("slice_ms", "due_after_ms", "is_end"),
    [
        (60, 0, False),  # due at once: shorter than a lead, and shorter than the slack of 100 ms
        (60, 29, False),
        (60, 30, True),
        (60, 60, True),
        (60, 90, True),
        (3_000, 2_000, False),  # one lead of 1 s before its end
        (3_000, 2_899, False),
        (3_000, 2_900, True),
        (3_000, 3_100, True),
    ],
)
def test_a_look_belongs_to_the_instant_that_is_nearer_to_when_it_was_due(
    slice_ms: int, due_after_ms: int, is_end: bool
) -> None:
    held = Held({"throttled_until_ms": _BEGIN_MS + slice_ms, "throttle_time_ms": slice_ms})
    case = Case(cast(Books, None), Rules(), Verdict())
    assert is_end_of(case, "1", {"due_ms": _BEGIN_MS + due_after_ms}, held) is is_end


@pytest.mark.parametrize(
    ("due_after_end_ms", "start_after_due_ms", "is_taken_up"),
    [
        (-101, 0, False),  # one that was still running, and is looked at as any other
        (-100, 0, True),  # by the slack of the clocks it may have ended
        (0, 0, True),
        (5_000, 0, True),
        (0, -101, False),  # an end that has come after the start
        (0, 30_100, True),  # a driver says so when it has published what was left
        (0, 30_101, False),
    ],
)
def test_a_look_about_the_end_may_be_due_because_a_driver_took_over(
    due_after_end_ms: int, start_after_due_ms: int, is_taken_up: bool
) -> None:
    held = Held({"throttled_until_ms": _BEGIN_MS, "throttle_time_ms": 3_000})
    due_ms = _BEGIN_MS + due_after_end_ms
    case = Case(cast(Books, None), Rules(), Verdict(), starts=[due_ms + start_after_due_ms])
    assert was_taken_up(case, {"due_ms": due_ms}, held) is is_taken_up


@pytest.mark.parametrize(
    ("after_drop_ms", "may_end"), [(-50, True), (30, True), (99, True), (100, False), (300, False)]
)
def test_a_look_may_be_taken_before_a_window_that_held_little_drops_out_of_the_rate(
    after_drop_ms: int, may_end: bool
) -> None:
    """One byte at T, 11 040 two seconds before that window drops out. Until then X = 11 040 - W, and W is nearly 11 s.

    Then W is 10 s, and X is larger by a second.
    """
    given = evidence()
    books = Books(given, given.tables["batches"][0]["engine_settings"])
    client = {"broker_id": "", "user": "alice", "client_id": "etl"}
    for start_ms, size in ((T_MS, 1), (T_MS + 9_000, 11_040)):
        row = {**given.tables["usage"][0], **client, "sample_start_ms": start_ms, "last_event_ms": start_ms}
        books.record([row | {"produced_bytes": size}], start_ms, 1)
    drop_ms = T_MS + 11_000
    batch = Batch({**_of(T_MS + 9_000), "quota_version": 1}, ())
    begin_ms = drop_ms + after_drop_ms
    about = {**client, "quota_type": "producer_byte_rate", "quota_version": 1}
    held = Held({**about, "throttled_until_ms": begin_ms + 50, "throttle_time_ms": 50})
    case = Case(books, Rules(min_hold_ms=1), Verdict())
    assert may_be_left_to_end(case, Reign(batch, None), held, held.end_ms) is may_end
    assert (held.nearest_ms <= 101) is may_end


@pytest.mark.parametrize(
    ("next_batch_after_ms", "may_end"), [(1_000, False), (5_999, False), (6_000, True), (9_000, True)]
)
def test_a_look_ahead_of_the_end_may_wait_for_a_record_that_is_published_until_the_next_batch(
    next_batch_after_ms: int, may_end: bool
) -> None:
    """16 000 of T = 1 000 at once: 6 s are owed until that window drops out after 11 s; the throttle ends after 1 s.

    The next batch is decided up to 5 s after it is collected.
    """
    given = evidence()
    books = Books(given, given.tables["batches"][0]["engine_settings"])
    client = {"broker_id": "", "user": "alice", "client_id": "etl"}
    row = {**given.tables["usage"][0], **client, "sample_start_ms": T_MS, "last_event_ms": T_MS}
    books.record([row | {"produced_bytes": 16_000}], T_MS, 1)
    batch = Batch({**_of(T_MS), "quota_version": 1}, ())
    following = Batch({**_of(T_MS + next_batch_after_ms), "quota_version": 1}, ())
    about = {**client, "quota_type": "producer_byte_rate", "quota_version": 1}
    held = Held({**about, "throttled_until_ms": T_MS + 1_000, "throttle_time_ms": 1_000})
    case = Case(books, Rules(), Verdict())
    case.held[("", "alice", "etl")] = held
    watch(case, Reign(batch, following))
    assert held.may_end is may_end, held.nearest_ms


def _of(at_ms: int) -> dict[str, object]:
    return {"query_id": "q", "batch_id": 0, "evaluated_at_ms": at_ms, "processed_at_ms": at_ms}
