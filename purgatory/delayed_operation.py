"""Where delayed operations wait: found by their watch keys, and by time (Kafka's `DelayedOperationPurgatory`).

An operation waits for an event, but not for ever. So it is in two places at once:

* in the watch list of each of its keys. An event on a key tries the operations of that list only;
* in the timer, which completes it at its time-out if no event did.

An operation that completes leaves the timer at once: `force_complete` cancels it there. It also leaves the watch list
of the key whose event completed it. In the lists of its other keys, and after a time-out in all lists, it stays as a
completed entry. That keeps completing cheap. Such entries are removed when their key is checked again, or by a *purge*,
which is a walk over all lists.

**When to purge.** A purge costs O(entries), so it must be rare. Completed entries take memory, so it must not be too
rare. Kafka's rule counts only what is cheap to count. Let `estimated_total` be the operations that were put on watch
lists since the last purge, plus those that were in the timer then. `num_delayed` is the size of the timer: the
operations that still wait. Their difference is a guess of how many operations are completed and not yet removed from
the lists. It is a guess from above, because a check of a key removes entries without lowering `estimated_total`. When

    estimated_total − num_delayed > purge_interval

the next `advance_clock` purges and sets estimated_total = num_delayed. So a purge comes after about `purge_interval`
completions, whatever the number of operations that wait.

**An example.** Two operations wait; the second one on two keys. An event on the key "b" completes the second one. Its
entry under "a" is left until "a" is checked or a purge removes it.

>>> from purgatory.timer import SystemMonotonicClock, SystemTimer
>>> class Operation(DelayedOperation):
...     can_complete = False
...
...     def try_complete(self):
...         return self.can_complete and self.force_complete()
...
...     def on_complete(self):
...         pass
>>> purgatory = DelayedOperationPurgatory(SystemTimer(SystemMonotonicClock()))
>>> first, second = Operation(delay_ms=60_000), Operation(delay_ms=60_000)
>>> purgatory.try_complete_else_watch(first, ["a"]), purgatory.try_complete_else_watch(second, ["a", "b"])
(False, False)
>>> purgatory.num_delayed, purgatory.watched
(2, 3)
>>> second.can_complete = True
>>> purgatory.check_and_complete("b")
1
>>> purgatory.num_delayed, purgatory.watched
(1, 2)
>>> purgatory.check_and_complete("a")
0
>>> purgatory.num_delayed, purgatory.watched
(1, 1)

**Thread rule.** Any thread may call any method, but only one thread at a time may call `advance_clock`. No lock of the
purgatory is held while an operation is tried or completed. Do not hold an exclusive lock of your own that an
`on_complete` may need.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from purgatory.errors import InvalidArgumentError
from purgatory.timer import SystemTimer
from purgatory.timing_wheel import TimerTask


class DelayedOperation(TimerTask):
    """A task that can complete before its time (Kafka's `DelayedOperation`).

    A subclass says when it can complete (`try_complete`), what completing does (`on_complete`), and what else happens
    on a time-out (`on_expiration`). Many threads may try to complete an operation; exactly one succeeds: a thread that
    brings an event, or the thread that advances the timer. On a time-out `on_complete` runs first, then
    `on_expiration`.

    `try_complete` runs under the operation's own lock; completing takes no lock.
    """

    __slots__ = ("_check_lock", "_claim")

    def __init__(self, delay_ms: int) -> None:
        """Make an operation. Its time-out is counted from the moment it is added to a timer."""
        super().__init__(delay_ms)
        self._check_lock = threading.RLock()
        # Taken once, by the thread that completes the operation, and never released: a compare-and-set.
        self._claim = threading.Lock()

    def try_complete(self) -> bool:
        """Return `force_complete()` if the operation can complete, else False. Called under the operation's lock."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """What completing does. Called once, by the thread that completed the operation."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """What a time-out does in addition. Called after `on_complete`, and only if the time-out completed it."""
        raise NotImplementedError

    @property
    def is_completed(self) -> bool:
        """True once a thread has completed it. Its `on_complete` may still be running."""
        return self._claim.locked()

    def force_complete(self) -> bool:
        """Complete now, without asking `try_complete`. Returns True to the one call that completed it."""
        if not self._claim.acquire(blocking=False):
            return False
        self.cancel()
        self.on_complete()
        return True

    def safe_try_complete(self) -> bool:
        """`try_complete` under the operation's lock."""
        with self._check_lock:
            return self.try_complete()

    def safe_try_complete_or_else(self, otherwise: Callable[[], None]) -> bool:
        """Under the lock: `try_complete`; if it fails, run `otherwise`, then once more. Returns whether it completed.

        The second try is for an event that arrives after the first try and before `otherwise` has done its work (for
        example, put the operation on a watch list). Without it that event would go unnoticed.
        """
        with self._check_lock:
            if self.try_complete():
                return True
            otherwise()
            return self.try_complete()

    def run(self) -> None:
        """The time-out: complete the operation, and if this call completed it, run `on_expiration`."""
        if self.force_complete():
            self.on_expiration()


Operation = TypeVar("Operation", bound=DelayedOperation)


class DelayedOperationPurgatory(Generic[Operation]):
    """Operations by watch key, with a timer for their time-outs.

    See the module's docstring for the purge rule, an example and the thread rule.

    One thing differs from Kafka, on purpose: `cancel_for_key` also removes the operations from the lists of their other
    keys. Kafka leaves them there without a timer, where they can neither expire nor be purged.
    """

    def __init__(self, timer: SystemTimer, purge_interval: int = 1000) -> None:
        """Make an empty purgatory.

        Args:
            timer: for the time-outs. A `Reaper` drives it through this purgatory.
            purge_interval: how many completed entries are tolerated, about. Kafka's default is 1000.
        """
        self._timer = timer
        self._purge_interval = purge_interval
        self._lock = threading.Lock()
        # Per key the operations, in the order of watching. The value lists all keys of the operation.
        self._watchers: defaultdict[Hashable, dict[Operation, tuple[Hashable, ...]]] = defaultdict(dict)
        self._estimated_total = 0

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable]) -> bool:
        """Complete the operation now; if that is not possible, let it wait for an event or its time-out.

        It is tried before and after it is put on the watch lists: see `DelayedOperation.safe_try_complete_or_else`.

        Args:
            operation: one that has never been in a purgatory.
            keys: at least one; a repeated key counts once.

        Returns:
            True if this call completed the operation.

        Raises:
            InvalidArgumentError: there is no key.
        """
        watch_keys = tuple(keys)
        if not watch_keys:
            message = "an operation has no watch key, so only its time-out could complete it"
            raise InvalidArgumentError(message)
        if operation.safe_try_complete_or_else(lambda: self._watch(operation, watch_keys)):
            return True
        if not operation.is_completed:
            self._timer.add(operation)
            if operation.is_completed:  # by another thread, between the two lines above: its cancel came too early
                operation.cancel()
        return False

    def _watch(self, operation: Operation, keys: tuple[Hashable, ...]) -> None:
        with self._lock:
            for key in keys:
                self._watchers[key][operation] = keys
            self._estimated_total += 1

    def check_and_complete(self, key: Hashable) -> int:
        """Something happened on a key: try all operations that wait on it. Returns how many this call completed."""
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
        """Take the operations of a key out of the purgatory, off all their keys, without completing them.

        Returns them in the order of watching. They will not expire; completing them is up to the caller.
        """
        with self._lock:
            operations = self._watchers.get(key, {}).copy()
            for operation, keys in operations.items():
                for watched_key in keys:
                    self._unwatch(operation, watched_key)
        for operation in operations:
            operation.cancel()
        return list(operations)

    def forget(self, operation: Operation, keys: Collection[Hashable]) -> None:
        """Take one operation out of the timer and off its keys, completed or not. A second call changes nothing.

        Kafka has no such call. A caller that knows that an operation is over (it gave up, or has gone on) can remove it
        at once from the keys that it was put on; other keys do no harm.
        """
        operation.cancel()
        with self._lock:
            unwatched = [key for key in keys if self._unwatch(operation, key)]
            if unwatched:
                self._estimated_total -= 1

    def advance_clock(self, timeout_ms: int) -> bool:
        """Complete what has timed out; if nothing has, wait up to timeout_ms for it. Then purge if it is time to.

        Returns False if nothing became due.

        Raises:
            ExceptionGroup: what operations raised. All that were due have run, and the purge is done.
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
        """Make an `advance_clock` that is waiting return soon."""
        self._timer.wake()

    @property
    def watched(self) -> int:
        """Gauge PurgatorySize: entries in all watch lists, completed ones included. One on k keys counts k times."""
        with self._lock:
            return sum(len(operations) for operations in self._watchers.values())

    @property
    def num_delayed(self) -> int:
        """Gauge NumDelayedOperations: the operations in the timer."""
        return self._timer.size()
