"""Delayed operations: timing wheels, timer, purgatory, memory pool.

The package knows neither quotas nor Spark nor Kafka. Its structures read no clock: time is an argument, `now_ms`.
`__all__` is what is supported.
"""

from purgatory.batch_wheel import BatchTimingWheel
from purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory.errors import PurgatoryError
from purgatory.memory_pool import MemoryIntake, MemoryPool
from purgatory.timer import MonotonicClock, Reaper, SystemMonotonicClock, SystemTimer
from purgatory.timing_wheel import BucketQueue, TaskCounter, TimerTask, TimerTaskEntry, TimingWheel

__all__ = [
    "BatchTimingWheel", "BucketQueue", "DelayedOperation", "DelayedOperationPurgatory", "MemoryIntake", "MemoryPool",
    "MonotonicClock", "PurgatoryError", "Reaper", "SystemMonotonicClock", "SystemTimer", "TaskCounter", "TimerTask",
    "TimerTaskEntry", "TimingWheel",
]  # fmt: skip
