"""Delayed operations: timing wheels, timer, purgatory, memory pool.

The package knows neither quotas nor Spark nor Kafka. Its structures read no clock: time is an argument, `now_ms`.
`__all__` is what is supported; a module is loaded when one of its names is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = {
    "batch_wheel": ("BatchTimingWheel",),
    "delayed_operation": ("DelayedOperation", "DelayedOperationPurgatory"),
    "errors": ("PurgatoryError",),
    "memory_pool": ("MemoryIntake", "MemoryPool"),
    "timer": ("MonotonicClock", "Reaper", "SystemMonotonicClock", "SystemTimer"),
    "timing_wheel": ("BucketQueue", "TaskCounter", "TimerTask", "TimerTaskEntry", "TimingWheel"),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name)
    return getattr(import_module(f"{__name__}.{module}"), name)
