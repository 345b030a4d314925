"""Held throttles as objects, with a list for a wheel: what the columns of the ledger are compared with."""

from dataclasses import dataclass

from schemas.names import ClientKey
from tests.pipeline.throttle.factories import Reason


@dataclass(frozen=True, slots=True)
class Held:
    """A running throttle."""

    key: ClientKey
    reason: Reason
    decision_id: str
    end_ms: int
    due_ms: int


class Ledger:
    """Held throttles, and a list for a wheel."""

    def __init__(self) -> None:
        self.held: dict[ClientKey, Held] = {}
        self._entries: dict[ClientKey, tuple[int, int]] = {}
        self._popped: dict[ClientKey, tuple[Held, int]] = {}
        self._submitted = 0

    def hold(self, throttle: Held) -> None:
        self._cancel(throttle.key)
        self.held[throttle.key] = throttle
        self._submitted += 1
        self._entries[throttle.key] = (throttle.due_ms, self._submitted)

    def drop(self, key: ClientKey) -> None:
        self._cancel(key)
        self.held.pop(key, None)

    def pop_due(self, now_ms: int) -> int:
        for key, (due_ms, _) in sorted(self._entries.items(), key=lambda entry: entry[1]):
            if due_ms <= now_ms:
                del self._entries[key]
                self._popped[key] = (self.held[key], now_ms)
        return len(self._popped)

    def take_due(self) -> list[tuple[Held, int]]:
        taken = list(self._popped.values())
        self._popped.clear()
        return taken

    def _cancel(self, key: ClientKey) -> None:
        self._popped.pop(key, None)
        self._entries.pop(key, None)
