"""Defects of delayed operations: wheels, timer, purgatories, memory pool."""

from typing import Final

from tests.mutations.planting import Defect

_TIMER: Final = "tests/purgatory/test_timer.py"
_PURGATORY: Final = "tests/purgatory/test_delayed_operation.py"
_WHEEL: Final = "tests/purgatory/test_batch_wheel.py"
_POOL: Final = "tests/purgatory/test_memory_pool.py"

DEFECTS: Final = (
    Defect(
        "the first level of the wheel takes what is due one interval later",
        "TimingWheel.add",
        ("while expiration_ms >= wheel.clock_ms", "while expiration_ms > wheel.clock_ms"),
        "tests/purgatory/test_timing_wheel.py",
    ),
    Defect(
        "the clock of a coarse level stands still",
        "TimingWheel.advance_clock",
        ("self.overflow.advance_clock(self.clock_ms)", "pass"),
        "tests/purgatory/test_timing_wheel.py",
    ),
    Defect(
        "a task runs up to a tick early, as in Kafka",
        "SystemTimer.add",
        ("expiration_ms += -expiration_ms % self._tick_ms", "expiration_ms -= expiration_ms % self._tick_ms"),
        f"{_TIMER}::test_a_coarse_tick_is_never_early",
    ),
    Defect(
        "tasks of one millisecond overtake each other",
        "SystemTimer._collect_due",
        ("(entry.expiration_ms, entry.submission)", "(entry.expiration_ms, -entry.submission)"),
        f"{_TIMER}::test_v9_entries_of_one_millisecond_run_first_in_first_out",
    ),
    Defect(
        "a task that fails stops those behind it",
        "SystemTimer.advance_clock",
        ("failures.append(failure)", "raise"),
        f"{_TIMER}::test_a_failing_task_does_not_stop_the_others",
    ),
    Defect(
        "a task that is added again waits twice",
        "TimerTaskEntry.__init__",
        ("task.entry.remove()", "pass"),
        f"{_TIMER}::test_v10_adding_a_waiting_task_again_moves_it",
    ),
    Defect(
        "an event between the first try and the watch list goes unnoticed",
        "DelayedOperation.safe_try_complete_or_else",
        ("otherwise()\n            return self.try_complete()", "otherwise()\n            return False"),
        "tests/purgatory/test_delayed_operation.py",
    ),
    Defect(
        "an operation that an event completed expires as well",
        "DelayedOperation.run",
        "lambda original, this: (this.force_complete(), this.on_expiration())",
        "tests/purgatory/test_delayed_operation.py",
    ),
    Defect(
        "a completed operation stays in the timer",
        "DelayedOperation.force_complete",
        ("self.cancel()", "pass"),
        _PURGATORY,
    ),
    Defect(
        "an operation that completes while its timer is started stays in the timer",
        "DelayedOperationPurgatory.try_complete_else_watch",
        ("if operation.is_completed:", "if False:"),
        f"{_PURGATORY}::test_completion_while_the_timer_is_started_leaves_no_timer_behind",
    ),
    Defect(
        "a purge comes one completion late",
        "DelayedOperationPurgatory._purge_if_worth_while",
        ("<= self._purge_interval", "<= self._purge_interval + 1"),
        f"{_PURGATORY}::test_more_completed_operations_than_the_interval_are_purged",
    ),
    Defect(
        "cancelled operations stay on the lists of their other keys",
        "DelayedOperationPurgatory.cancel_for_key",
        ("for watched_key in keys:", "for watched_key in (key,):"),
        f"{_PURGATORY}::test_cancel_for_key_leaves_nothing_on_other_keys_where_kafka_leaks",
    ),
    Defect(
        "an operation that was never watched counts when it is forgotten, and puts a purge off",
        "DelayedOperationPurgatory.forget",
        ("if unwatched:", "if True:"),
        f"{_PURGATORY}::test_forgetting_what_was_never_watched_does_not_put_a_purge_off",
    ),
    Defect(
        "a handle that is repeated in one batch cancels twice",
        "Slab.remove_many",
        ("if not first.all():", "if False:"),
        _WHEEL,
    ),
    Defect(
        "a stale handle cancels whoever has its slot now",
        "Slab.remove_many",
        ("pending = self._owner[slots] == handles", "pending = self._owner[slots] >= 0"),
        _WHEEL,
    ),
    Defect(
        "a cancelled entry is handed out",
        "BatchTimingWheel._still_pending",
        ("if not self._dead:", "if True:"),
        _WHEEL,
    ),
    Defect(
        "entries that were overdue come out in no order",
        "BatchTimingWheel.advance",
        ("in_order = in_order and not self._overdue", "in_order = True"),
        _WHEEL,
    ),
    Defect(
        "the hint does not know entries that are not in a bucket yet, so a reaper sleeps past them",
        "BatchTimingWheel.next_expiration_ms",
        ("bound_ms = self._staging.min_ms", "bound_ms = MAX_TIME_MS"),
        _WHEEL,
    ),
    Defect(
        "entries that are overdue are lost when the wheel is compacted",
        "BatchTimingWheel._compact_if_worth_while",
        ("*self._overdue, ", ""),
        _WHEEL,
    ),
    Defect(
        "a second release gives the pool more bytes than it has",
        "MemoryPool.release",
        "lambda original, this, given: this.__dict__.update(available_bytes=this.available_bytes + given.size_bytes)",
        _POOL,
    ),
    Defect(
        "small requests starve a large one in a pool that is not strict",
        "MemoryPool.try_allocate",
        ("(size_bytes if self.strict else 1)", "size_bytes"),
        _POOL,
    ),
    Defect(
        "a small request overtakes a large one that waits for memory",
        "MemoryIntake.try_allocate",
        ("None if self._muted else ", ""),
        _POOL,
    ),
)
