"""The right sums, and how a peer that is wrong by one is found."""

import json

import pytest

from bench.peers.messages import MEASURES, Difference, compare, shifted, sums_of

ALICE = (1_000, "alice", "etl")
BOB = (2_000, "bob", "")


def event(time_ms: int, user: str, client_id: str, *measured: int) -> dict[str, object]:
    return {
        "event_time_ms": time_ms,
        "user": user,
        "client_id": client_id,
        **dict(zip(MEASURES, measured, strict=True)),
    }


def test_sums_are_by_second_user_and_client_of_objects_and_arrays_alike() -> None:
    events = [
        event(1_000, "alice", "etl", 1, 2, 3, 4, 1),
        event(1_999, "alice", "etl", 10, 20, 30, 40, 2),
        event(2_000, "bob", "", 5, 0, 0, 0, 1),
    ]
    expected = {ALICE: (11, 22, 33, 44, 3), BOB: (5, 0, 0, 0, 1)}
    assert sums_of(json.dumps(one).encode() for one in events) == expected
    assert sums_of([json.dumps(events).encode()]) == expected
    assert sums_of([b"[]"]) == {}


def test_sums_above_the_exact_doubles_are_exact() -> None:
    large = 2**53
    values = [json.dumps(event(1_000, "alice", "etl", large, 0, 0, 0, 1)).encode() for _ in range(3)]
    values.append(json.dumps(event(1_000, "alice", "etl", 1, 0, 0, 0, 1)).encode())
    assert sums_of(values)[ALICE][0] == 3 * large + 1


def test_a_later_copy_has_the_same_sums_later() -> None:
    assert shifted({ALICE: (1,)}, 5_000) == {(6_000, "alice", "etl"): (1,)}
    with pytest.raises(ValueError, match="1500 ms are no whole seconds"):
        shifted({ALICE: (1,)}, 1_500)


RIGHT = {ALICE: (11, 22, 33, 44, 3), BOB: (5, 0, 0, 0, 1)}


def test_equal_results_are_right() -> None:
    assert compare(RIGHT, dict(RIGHT)) == Difference()
    assert compare(RIGHT, dict(RIGHT)).is_right
    assert str(compare(RIGHT, dict(RIGHT))) == "right"


@pytest.mark.parametrize(
    ("got", "found", "told"),
    [
        (RIGHT | {BOB: (5, 0, 0, 0, 2)}, (0, 0, 1), f"{BOB} is (5, 0, 0, 0, 2), not (5, 0, 0, 0, 1)"),
        ({ALICE: RIGHT[ALICE]}, (1, 0, 0), f"{BOB} is missing, expected (5, 0, 0, 0, 1)"),
        (RIGHT | {(3_000, "eve", ""): (1, 0, 0, 0, 1)}, (0, 1, 0), "(3000, 'eve', '') is unexpected"),
    ],
)
def test_one_wrong_missing_or_unexpected_sum_is_found(
    got: dict[tuple[int, str, str], tuple[int, ...]], found: tuple[int, int, int], told: str
) -> None:
    difference = compare(RIGHT, got)
    assert (difference.missing, difference.unexpected, difference.wrong) == found
    assert not difference.is_right
    assert told in str(difference)
