"""Where delayed operations wait, found by watch keys and by time (Kafka's `DelayedOperationPurgatory`)."""

import threading
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

from purgatory.delayed_operation import DelayedOperation
from purgatory.errors import MissingWatchKeyError
from purgatory.timer import Timer

Operation = TypeVar("Operation", bound=DelayedOperation)


class DelayedOperationPurgatory(Generic[Operation]):
    """Operations by watch key, with a timer for their time-outs. Any thread may call; one advances the clock.

    Completed operations leave the watch lists when their key is checked, or in a purge: once completed but still
    watched operations may be more than `purge_interval`, the next `advance_clock` drops all of them.

    Better than Kafka, on purpose: `cancel_for_key` takes the operations out of the lists of their other keys too.
    Kafka leaves them there without a timer, where they can neither expire nor be purged.
    """

    def __init__(self, timer: Timer, purge_interval: int = 1000) -> None:
        """Make an empty purgatory.

        Args:
            timer: for the time-outs; a `purgatory.reaper.Reaper` drives it through this purgatory.
            purge_interval: completed but watched operations that are put up with.
        """
        self._timer = timer
        self._purge_interval = purge_interval
        self._lock = threading.Lock()
        # Per key the operations in order of watching; the values repeat the keys each operation is watched on.
        self._watchers: defaultdict[Hashable, dict[Operation, tuple[Hashable, ...]]] = defaultdict(dict)
        self._estimated_total = 0

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable]) -> bool:
        """Complete the operation now, or watch it on every key until an event or its time-out completes it.

        Args:
            operation: a fresh one.
            keys: at least one; repeated ones count once.

        Returns:
            True when this call completed it.

        Raises:
            MissingWatchKeyError: there is no key.
        """
        watch_keys = tuple(keys)
        if not watch_keys:
            raise MissingWatchKeyError
        if operation.safe_try_complete_or_else(lambda: self._watch(operation, watch_keys)):
            return True
        if not operation.is_completed:
            self._timer.add(operation)
            if operation.is_completed:  # between the two lines above; its own cancel came too early
                operation.cancel()
        return False

    def _watch(self, operation: Operation, keys: tuple[Hashable, ...]) -> None:
        with self._lock:
            for key in keys:
                self._watchers[key][operation] = keys
            self._estimated_total += 1

    def check_and_complete(self, key: Hashable) -> int:
        """Try every operation watched on a key; returns how many this call completed."""
        with self._lock:
            watched = list(self._watchers.get(key, ()))
        completed = 0
        finished = []
        for operation in watched:
            if operation.is_completed:
                finished.append(operation)
            elif operation.safe_try_complete():
                finished.append(operation)
                completed += 1
        with self._lock:
            for operation in finished:
                self._unwatch(operation, key)
        return completed

    def _unwatch(self, operation: Operation, key: Hashable) -> bool:
        operations = self._watchers.get(key)
        if operations is None or operations.pop(operation, None) is None:
            return False
        if not operations:
            del self._watchers[key]
        return True

    def cancel_for_key(self, key: Hashable) -> list[Operation]:
        """Take the operations of a key out of the purgatory altogether, not completed; returns them."""
        with self._lock:
            operations = self._watchers.get(key, {}).copy()
            for operation, keys in operations.items():
                for watched_key in keys:
                    self._unwatch(operation, watched_key)
        for operation in operations:
            operation.cancel()
        return list(operations)

    def forget(self, operation: Operation, keys: Collection[Hashable]) -> None:
        """Take one operation out of its timer and off its keys, completed or not. Repeating it changes nothing.

        Kafka has no such call: its operations leave the lists with the next check of a key or with a purge. Whoever
        knows that an operation is over (its caller gave up, or has gone on) need not leave that to chance.

        Args:
            operation: which.
            keys: those it was put on; others are harmless.
        """
        operation.cancel()
        with self._lock:
            unwatched = [key for key in keys if self._unwatch(operation, key)]
            if unwatched:
                self._estimated_total -= 1

    def advance_clock(self, timeout_ms: int) -> bool:
        """Expire what is due, waiting up to timeout_ms for it; then purge if that is worth while.

        Raises:
            ExceptionGroup: what operations raised on expiry; all due ones have run and the purge is done.
        """
        try:
            return self._timer.advance_clock(timeout_ms)
        finally:
            self._purge_if_worth_while()

    def _purge_if_worth_while(self) -> None:
        pending = self.num_delayed
        with self._lock:
            if self._estimated_total - pending <= self._purge_interval:
                return
            self._estimated_total = pending
            for key, operations in list(self._watchers.items()):
                kept = {operation: keys for operation, keys in operations.items() if not operation.is_completed}
                if kept:
                    self._watchers[key] = kept
                else:
                    del self._watchers[key]

    def wake(self) -> None:
        """Make a waiting `advance_clock` return soon."""
        self._timer.wake()

    @property
    def watched(self) -> int:
        """Gauge PurgatorySize: watch-list entries; an operation on k keys counts k times, completed ones too."""
        with self._lock:
            return sum(len(operations) for operations in self._watchers.values())

    @property
    def watched_keys(self) -> int:
        """Number of keys that something is watched on."""
        with self._lock:
            return len(self._watchers)

    @property
    def num_delayed(self) -> int:
        """Gauge NumDelayedOperations: operations that wait for their time-out."""
        return self._timer.size()
