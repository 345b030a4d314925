"""Kafka's TimerTaskListTest (3.1), and cases that it does not have."""

import pytest

from purgatory.timing_wheel import NOT_QUEUED_MS, TaskCounter, TimerTask, TimerTaskEntry, TimerTaskList


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


def test_setting_the_same_expiration_again_is_no_change() -> None:
    bucket = TimerTaskList(TaskCounter())
    assert [bucket.set_expiration(expiration_ms) for expiration_ms in (5, 5, 25)] == [True, False, True]


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
