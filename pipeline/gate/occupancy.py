"""The gauges of a waiting room."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The gauges of a waiting room, all read at the same time.

    Attributes:
        purgatory_size: PurgatorySize, entries of the watch lists.
        delayed_operations: NumDelayedOperations, callers that wait for a time-out.
        waiting: Callers that are not awake yet, including those that wait for memory.
        waiting_for_memory: Callers that wait for bytes of the pool.
        pool_size_bytes: Of the memory pool.
        pool_available_bytes: What is left of it. Below 0 when the last request was larger than what was left.
        pool_used_bytes: In use by callers that wait, and by callers that are awake and have not left yet. Bytes of
            callers that went on after their throttle without finding any in the pool are not part of it.
        pool_depleted_percent: Share of the last minute in which the pool refused, 0 to 100.
        throttled_clients: Throttles that run now.
    """

    purgatory_size: int
    delayed_operations: int
    waiting: int
    waiting_for_memory: int
    pool_size_bytes: int
    pool_available_bytes: int
    pool_used_bytes: int
    pool_depleted_percent: float
    throttled_clients: int
