"""The throttles that are running now: who is held, until when, and what is due next.

One thread at a time (the publisher's lock serialises the writers). The wheel's own lock is never held while
anything is read or written outside, so the reaper can always tell what is due.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from threading import Lock

from pipeline.throttle.held import HandedOut, HeldThrottle
from purgatory.batch_wheel import BatchTimingWheel
from schemas.client_key import ClientKey


class ThrottleLedger:
    """Held throttles by client, each with one entry in the timing wheel: its look, or its end.

    Args:
        start_ms: Steady time now.
    """

    def __init__(self, start_ms: int) -> None:
        self._held: dict[ClientKey, HeldThrottle] = {}
        self._handles: dict[ClientKey, int] = {}
        self._keys: dict[int, ClientKey] = {}
        self._handed_out: dict[ClientKey, HandedOut] = {}
        self._wheel = BatchTimingWheel(start_ms=start_ms)
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held(self) -> Mapping[ClientKey, HeldThrottle]:
        """The running throttles; a view, to be read under the publisher's lock."""
        return self._held

    def hold(self, throttle: HeldThrottle) -> None:
        """Begin to hold a client, or go on with a new end; the earlier entry in the wheel is cancelled."""
        with self._lock:
            self._cancel(throttle.key)
            self._held[throttle.key] = throttle
            handle = self._wheel.schedule(throttle.due_ms)
            self._handles[throttle.key] = handle
            self._keys[handle] = throttle.key

    def wait_for_end(self, throttles: Iterable[HeldThrottle]) -> None:
        """The look is taken and nothing more is owed: hand these out again when they end."""
        for throttle in throttles:
            self.hold(replace(throttle, due_ms=throttle.end_ms))

    def drop(self, keys: Iterable[ClientKey]) -> None:
        """Hold these clients no longer. Unknown keys are ignored."""
        with self._lock:
            for key in keys:
                self._cancel(key)
                self._held.pop(key, None)

    def hand_out(self, now_ms: int) -> int:
        """Take what is due from the wheel, stamped with now; returns how many now wait to be looked at.

        They stay held. One that gets a new end before it is looked at, or is dropped, waits no longer.
        """
        with self._lock:
            handles, _ = self._wheel.advance(now_ms)
            for handle in handles.tolist():
                key = self._keys.pop(handle)
                del self._handles[key]
                self._handed_out[key] = HandedOut(self._held[key], now_ms)
            return len(self._handed_out)

    def take_handed_out(self) -> list[HandedOut]:
        """All that wait to be looked at, in the order (due, submission); they wait no longer."""
        with self._lock:
            taken = list(self._handed_out.values())
            self._handed_out.clear()
            return taken

    def next_due_ms(self) -> int | None:
        """A lower bound of the next due time, None when nothing is held."""
        with self._lock:
            return self._wheel.next_expiration_ms

    def _cancel(self, key: ClientKey) -> None:
        self._handed_out.pop(key, None)
        handle = self._handles.pop(key, None)
        if handle is not None:
            del self._keys[handle]
            self._wheel.cancel(handle)

    def __iter__(self) -> Iterator[HeldThrottle]:
        return iter(list(self._held.values()))
