"""What is told of the throttle topic, and in which order, without a broker: a reader that gives what it is given."""

from typing import Any

import pytest

from pipeline.gate.follower import BEGINNING, Found, RunningDecisions, ThrottleTail
from schemas.throttle_record import ThrottleRecord
from tests.pipeline.throttle.factories import record, release


class GivenReader:
    """Gives one list of records at each poll. The topic ends, at the start, where `ends` says."""

    def __init__(self, ends: dict[Any, int], *polls: list[Found]) -> None:
        self._ends = ends
        self._polls = list(polls)
        self._read: dict[Any, int] = {}

    def ends(self) -> dict[Any, int]:
        return self._ends

    def has_read(self, ends: dict[Any, int]) -> bool:
        return all(self._read.get(partition, 0) >= end for partition, end in ends.items())

    def take_is_new_topic(self) -> bool:
        return False

    def poll(self, wait_ms: int) -> list[Found]:
        found = self._polls.pop(0) if self._polls else []
        self._read |= {one.partition: one.offset + 1 for one in found}
        return found


def tailed(reader: Any, since_ms: int | None) -> list[tuple[int, bool]]:
    tail = ThrottleTail(reader, since_ms)
    return [(one.record.publish_seq, one.extends) for _ in range(4) for one in tail.step(0)]


def violation(seq: int, decision_id: str, client_id: str = "etl") -> ThrottleRecord:
    return record(seq, 5_000, client_id=client_id, decision_id=decision_id, cause="violation")


def test_from_now_on_only_what_comes_is_told_but_what_ran_before_is_known() -> None:
    reader = GivenReader(
        {0: 2},
        [Found(0, 0, violation(0, "a")), Found(0, 1, violation(1, "b", "web"))],
        [Found(0, 2, violation(2, "a"))],
        [Found(1, 0, violation(3, "c", "new"))],
    )
    assert tailed(reader, None) == [(2, True), (3, False)]


def test_partitions_that_are_read_one_after_the_other_are_told_in_the_jobs_order() -> None:
    reader = GivenReader(
        {0: 2, 1: 1},
        [Found(0, 0, violation(0, "a")), Found(0, 1, violation(2, "a"))],
        [Found(1, 0, violation(1, "b", "web"))],
    )
    assert tailed(reader, BEGINNING) == [(0, False), (1, False), (2, True)]


@pytest.mark.parametrize(("later_ms", "told"), [(-1, [0, 1]), (0, [0, 1]), (1, [])])
def test_since_an_instant_means_written_at_it_or_later(later_ms: int, told: list[int]) -> None:
    first = violation(0, "a")
    reader = GivenReader({0: 2}, [Found(0, 0, first), Found(0, 1, violation(1, "a"))])
    assert [seq for seq, _ in tailed(reader, first.written_ms + later_ms)] == told


def test_a_release_ends_what_can_be_extended_and_a_renewal_does_not() -> None:
    decisions = RunningDecisions()
    renewed = record(2, 5_000, client_id="etl", decision_id="a", cause="renewed")
    steps = [
        violation(0, "a"),
        violation(1, "a"),
        renewed,
        violation(3, "a"),
        release(4, client_id="etl", decision_id="a"),
        violation(5, "a"),
    ]
    assert [decisions.extends(one) for one in steps] == [False, True, False, True, False, False]
