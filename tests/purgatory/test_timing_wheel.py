"""Kafka's wheel bucket by bucket: V2, any entries at their tick, and the printed walk-through.

Notation L·b@e = level, bucket number, bucket expiration.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.timing_wheel import (
    NOT_QUEUED_MS,
    BucketQueue,
    TaskCounter,
    TimerTask,
    TimerTaskEntry,
    TimerTaskList,
    TimingWheel,
)
from purgatory.walkthrough import Walkthrough, main


def test_the_clock_moves_on_every_level() -> None:
    walk = Walkthrough(tick_ms=1, wheel_size=10)
    walk.add(222)
    walk.wheel.advance_clock(200)
    assert [wheel.clock_ms for wheel in walk.wheel.levels] == [200] * 3
    assert [walk.add(at_ms) for at_ms in (209, 210, 299, 300)] == ["L1·9@209", "L2·1@210", "L2·9@290", "L3·3@300"]


@given(
    tick_ms=st.integers(1, 5),
    wheel_size=st.integers(2, 20),
    start_ms=st.integers(0, 100),
    delays_ms=st.lists(st.integers(0, 5_000), max_size=20),
)
def test_every_entry_is_due_at_its_tick_whatever_the_levels(
    tick_ms: int, wheel_size: int, start_ms: int, delays_ms: list[int]
) -> None:
    queue = BucketQueue()
    wheel = TimingWheel(tick_ms, wheel_size, start_ms, TaskCounter(), queue)
    due_ms: list[tuple[int, int]] = []
    wheel_start_ms = now_ms = wheel.clock_ms

    def place(entry: TimerTaskEntry) -> None:
        if not wheel.add(entry):
            due_ms.append((now_ms, entry.expiration_ms))

    for delay_ms in delays_ms:
        place(TimerTaskEntry(TimerTask(delay_ms), start_ms + delay_ms))
    while (bucket := queue.poll(10**6)) is not None:
        assert bucket.expiration_ms >= now_ms, "an entry that sinks comes nearer"
        now_ms = bucket.expiration_ms
        wheel.advance_clock(now_ms)
        bucket.flush(place)
    assert sorted(at for _, at in due_ms) == sorted(start_ms + delay_ms for delay_ms in delays_ms)
    assert all(polled_ms == max(at - at % tick_ms, wheel_start_ms) for polled_ms, at in due_ms)


def test_v2_six_tasks() -> None:
    #   level 1   0 1 2 3 4 5 6 7 8 [9]
    #   level 2   0-9 ... [80-89] 90-99             88
    #   level 3   0-99 100- [200-299] ... [500-599] 222; 520, 521, 522
    walk = Walkthrough(tick_ms=1, wheel_size=10)
    places = [walk.add(expiration_ms) for expiration_ms in (9, 88, 222, 520, 521, 522)]
    assert places == ["L1·9@9", "L2·8@80", "L3·2@200", "L3·5@500", "L3·5@500", "L3·5@500"]
    assert walk.queue.expirations_ms == [9, 80, 200, 500]
    story = []
    while (step := walk.poll()) is not None:
        story.append((step.polled_ms, step.clocks_ms, step.fired_ms, step.moved, step.queue_ms))
    assert story == [
        (9, [9, 0, 0], [9], [], [80, 200, 500]),
        (80, [80, 80, 0], [], [(88, "L2·8@80", "L1·8@88")], [88, 200, 500]),
        (88, [88, 80, 0], [88], [], [200, 500]),
        (200, [200, 200, 200], [], [(222, "L3·2@200", "L2·2@220")], [220, 500]),
        (220, [220, 220, 200], [], [(222, "L2·2@220", "L1·2@222")], [222, 500]),
        (222, [222, 220, 200], [222], [], [500]),
        (500, [500] * 3, [], [(x, "L3·5@500", "L2·2@520") for x in (520, 521, 522)], [520]),
        (520, [520, 520, 500], [520], [(521, "L2·2@520", "L1·1@521"), (522, "L2·2@520", "L1·2@522")], [521, 522]),
        (521, [521, 520, 500], [521], [], [522]),
        (522, [522, 520, 500], [522], [], []),
    ]
    assert walk.queue.offers == 10


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_an_entry_leaves_the_front_the_middle_and_the_end(removed: int) -> None:
    counter = TaskCounter()
    bucket = TimerTaskList(counter)
    entries = [TimerTaskEntry(TimerTask(0), 10) for _ in range(3)]
    for entry in entries:
        bucket.add(entry)
    entries[removed].remove()
    entries[removed].remove()
    assert counter.value == 2
    flushed: list[TimerTaskEntry] = []
    bucket.set_expiration(10)
    bucket.flush(flushed.append)
    assert flushed == [entry for entry in entries if entry is not entries[removed]]
    assert (counter.value, bucket.expiration_ms) == (0, NOT_QUEUED_MS)


def test_a_bucket_does_not_unlink_an_entry_of_another() -> None:
    counter = TaskCounter()
    one, other = TimerTaskList(counter), TimerTaskList(counter)
    entry = TimerTaskEntry(TimerTask(0), 10)
    one.add(entry)
    other.remove(entry)
    assert (list(one), counter.value) == ([entry], 1)


def test_the_walk_through_prints_places_and_polls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", "9", "88", "222", "--tick", "1", "--wheel-size", "10"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "tick 1 ms, 10 buckets per level, clock 0"
    assert [line.split()[1:] for line in told if "add" in line] == [
        ["0", "due"],
        ["9", "L1·9@9"],
        ["88", "L2·8@80"],
        ["222", "L3·2@200"],
    ]
    assert "queue        9, 80, 200" in told
    assert [int(line.split()[0]) for line in told[-6:]] == [9, 80, 88, 200, 220, 222]
    assert told[-3].endswith("222: L3·2@200 -> L2·2@220")
