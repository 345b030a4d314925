"""Kafka's wheel bucket by bucket: V1 to V9, its TimerTaskListTest (3.1), and the printed walk-through.

Notation L·b@e = level, bucket number, bucket expiration.
"""

import pytest

from purgatory.errors import InvalidArgumentError
from purgatory.timing_wheel import (
    NOT_QUEUED_MS,
    BucketQueue,
    TaskCounter,
    TimerTask,
    TimerTaskEntry,
    TimerTaskList,
    TimingWheel,
)
from purgatory.walkthrough import Walkthrough, lines, main


def fired(walk: Walkthrough) -> list[tuple[int, list[int]]]:
    """(poll, what ran) for every poll that ran something, until the queue is empty."""
    story = []
    while (step := walk.poll()) is not None:
        if step.fired_ms:
            story.append((step.polled_ms, step.fired_ms))
    return story


def test_v1_222_sinks_through_three_levels() -> None:
    #   level 3   | 0-99 | 100-199 | [200-299] | ...        222 -> here
    #   level 2   | 200-209 | 210-219 | [220-229] | ...     at 200
    #   level 1   | 220 | 221 | [222] | ...                 at 220
    walk = Walkthrough(tick_ms=1, wheel_size=10)
    assert walk.add(222) == "L3·2@200"
    steps = [walk.poll() for _ in range(3)]
    assert [(step.polled_ms, step.clocks_ms, step.moved, step.fired_ms) for step in steps if step] == [
        (200, [200, 200, 200], [(222, "L3·2@200", "L2·2@220")], []),
        (220, [220, 220, 200], [(222, "L2·2@220", "L1·2@222")], []),
        (222, [222, 220, 200], [], [222]),
    ]
    assert walk.poll() is None


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


@pytest.mark.parametrize("start_ms", [0, 9, 27])
def test_v3_the_buckets_of_the_javadoc_example(start_ms: int) -> None:
    #   tick 1, 3 buckets, clock c:   level 1 [c] [c+1] [c+2]   level 2 [c, c+2] [c+3, c+5] ...   level 3 [c, c+8] ...
    walk = Walkthrough(tick_ms=1, wheel_size=3)
    walk.add(30)  # makes the levels
    walk.wheel.advance_clock(start_ms)
    walk.wheel.advance_clock(start_ms + 1)
    assert walk.add(start_ms + 3).startswith("L1")  # [c+3, c+3] appeared on level 1
    assert walk.add(start_ms + 4).startswith("L2")
    walk.wheel.advance_clock(start_ms + 3)
    assert walk.add(start_ms + 5).startswith("L1")
    assert walk.add(start_ms + 9).startswith("L2")  # [c+9, c+11] appeared on level 2


def test_v4_every_level_and_its_edges() -> None:
    #   tick 1, 3 buckets: levels reach 3, 9, 27, 81, 243, 729
    walk = Walkthrough(tick_ms=1, wheel_size=3)
    placed = {x: walk.add(x) for x in (0, 1, 2, 3, 4, 8, 9, 26, 27, 80, 81, 499)}
    assert placed == {
        0: "due",
        1: "L1·1@1",
        2: "L1·2@2",
        3: "L2·1@3",
        4: "L2·1@3",
        8: "L2·2@6",
        9: "L3·1@9",
        26: "L3·2@18",
        27: "L4·1@27",
        80: "L4·2@54",
        81: "L5·1@81",
        499: "L6·2@486",
    }
    polls, ran = [], []
    while (step := walk.poll()) is not None:
        polls.append(step.polled_ms)
        ran += [(step.polled_ms, x) for x in step.fired_ms]
    assert polls == [1, 2, 3, 4, 6, 8, 9, 18, 24, 26, 27, 54, 72, 78, 80, 81, 486, 495, 498, 499]
    assert ran == [(x, x) for x in (1, 2, 3, 4, 8, 9, 26, 27, 80, 81, 499)]


def test_v5_the_beginning_of_a_coarse_bucket_runs_from_there() -> None:
    #   tick 1, 20 buckets: level 2 in steps of 20, level 3 in steps of 400
    walk = Walkthrough(tick_ms=1, wheel_size=20)
    assert [walk.add(x) for x in (60, 199, 200, 400)] == ["L2·3@60", "L2·9@180", "L2·10@200", "L3·1@400"]
    assert fired(walk) == [(60, [60]), (199, [199]), (200, [200]), (400, [400])]
    assert walk.queue.offers == 5  # only 199 moved


def test_v6_a_coarse_tick_is_up_to_a_tick_early() -> None:
    #   tick 5, 4 buckets: level 1 [0] [5] [10] [15], level 2 [0] [20] [40] [60], level 3 [0] [80] ...
    walk = Walkthrough(tick_ms=5, wheel_size=4)
    placed = {x: walk.add(x) for x in (4, 5, 7, 19, 20, 23, 99)}
    assert placed[4] == "due"
    assert placed[5] == placed[7] == "L1·1@5"
    assert placed[20] == placed[23] == "L2·1@20"
    assert placed[99] == "L3·1@80"
    assert fired(walk) == [(5, [5, 7]), (15, [19]), (20, [20, 23]), (95, [99])]


def test_v7_levels_are_skipped_on_the_way_down() -> None:
    walk = Walkthrough(tick_ms=1, wheel_size=3)
    assert walk.add(499) == "L6·2@486"
    moves = []
    while (step := walk.poll()) is not None:
        moves += [(step.polled_ms, after) for _, _, after in step.moved]
    assert moves == [(486, "L3·1@495"), (495, "L2·1@498"), (498, "L1·1@499")]


def test_v8_a_stale_clock_costs_two_polls_and_nothing_else() -> None:
    walk = Walkthrough(tick_ms=1, wheel_size=20)
    assert walk.add(1_000_005) == "L5·6@960000"
    story = []
    while (step := walk.poll()) is not None:
        story.append((step.polled_ms, [after for _, _, after in step.moved], step.fired_ms))
    assert story == [
        (960_000, ["L4·5@1000000"], []),
        (1_000_000, ["L1·5@1000005"], []),
        (1_000_005, [], [1_000_005]),
    ]


def test_v9_the_bare_wheel_lets_a_later_entry_overtake() -> None:
    #   A (25) waits on level 2, and B (25) goes directly to level 1. Then A is added behind B.
    counter, queue = TaskCounter(), BucketQueue()
    wheel = TimingWheel(1, 20, 0, counter, queue)
    first, second = TimerTask(25), TimerTask(15)
    wheel.add(TimerTaskEntry(first, 25))
    wheel.advance_clock(10)
    wheel.add(TimerTaskEntry(second, 25))
    polled = queue.poll(20)
    assert polled is not None
    wheel.advance_clock(20)
    polled.flush(wheel.add)
    last = queue.poll(25)
    assert last is not None
    assert [entry.task for entry in last] == [second, first]
    assert counter.value == 2


@pytest.mark.parametrize(
    ("tick_ms", "wheel_size", "start_ms", "name"),
    [(0, 3, 0, "tick_ms"), (1, 1, 0, "wheel_size"), (1, 3, -1, "start_ms")],
)
def test_impossible_wheels_are_refused(tick_ms: int, wheel_size: int, start_ms: int, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name} is .*; it can be"):
        TimingWheel(tick_ms, wheel_size, start_ms, TaskCounter(), BucketQueue())


def test_3_1_three_lists_share_one_counter() -> None:
    counter = TaskCounter()
    one, two, three = (TimerTaskList(counter) for _ in range(3))
    tasks = [TimerTask(0) for _ in range(10)]

    def sizes() -> list[int]:
        return [len(list(bucket)) for bucket in (one, two, three)]

    for number, task in enumerate(tasks, start=1):
        one.add(TimerTaskEntry(task, 10))
        assert counter.value == number
    for task in tasks[:4]:
        two.add(TimerTaskEntry(task, 10))
        assert counter.value == 10
    assert sizes() == [6, 4, 0]
    for task in tasks[4:]:
        three.add(TimerTaskEntry(task, 10))
        assert counter.value == 10
    assert sizes() == [0, 4, 6]
    for bucket, expected in ((one, [0, 4, 6]), (two, [0, 0, 6]), (three, [0, 0, 0])):
        for entry in bucket:
            entry.remove()
        assert sizes() == expected
    assert counter.value == 0


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


def test_the_published_example_reads_poll_by_poll() -> None:
    told = lines([9, 88, 222, 520, 521, 522], tick_ms=1, wheel_size=10)
    assert told[0] == "tick 1 ms, 10 buckets per level, clock 0"
    assert told[4].split() == ["add", "222", "L3·2@200"]
    assert "queue        9, 80, 200, 500" in told
    assert [int(line.split()[0]) for line in told[-10:]] == [9, 80, 88, 200, 220, 222, 500, 520, 521, 522]
    assert told[-7].endswith("222: L3·2@200 -> L2·2@220")


def test_a_task_that_is_due_when_added_is_shown_as_due(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", "7", "--tick", "5", "--wheel-size", "4"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[2].split() == ["add", "0", "due"]
    assert printed[3].split() == ["add", "7", "L1·1@5"]
