"""Held throttles by columns, compared with objects in a dictionary; clients that have gone are forgotten at once."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from pipeline.throttle.ledger import ThrottleLedger
from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.usage import Pair
from schemas.throttle_record import Target
from tests.pipeline.throttle.factories import Reason, claims, clients, reason


@dataclass(frozen=True, slots=True)
class Held:
    """A running throttle."""

    key: Target
    reason: Reason
    decision_id: str
    end_ms: int
    due_ms: int


class Ledger:
    """Held throttles, and a list for a wheel."""

    def __init__(self) -> None:
        self.held: dict[Target, Held] = {}
        self._entries: dict[Target, tuple[int, int]] = {}
        self._popped: dict[Target, tuple[Held, int]] = {}
        self._submitted = 0

    def hold(self, throttle: Held) -> None:
        self._cancel(throttle.key)
        self.held[throttle.key] = throttle
        self._submitted += 1
        self._entries[throttle.key] = (throttle.due_ms, self._submitted)

    def drop(self, key: Target) -> None:
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

    def _cancel(self, key: Target) -> None:
        self._popped.pop(key, None)
        self._entries.pop(key, None)


TARGETS = (("", None), ("c", None), (None, "producer_byte_rate"), (None, "request_percentage"))
KEYS = [Target(*names, *target) for names in product(("", "1"), ("u1", "u2", "u3\0")) for target in TARGETS]
ENGINE = QuotaEngine()
CLIENTS = st.lists(st.sampled_from(KEYS), max_size=len(KEYS))


def rows_of(throttles: list[Held]) -> list[dict[str, object]]:
    figures = ("quota_type", "bound", "level")
    return [
        {
            **one.key._asdict(),
            "except_client_ids": None if one.key.client_id is not None else ["web", one.key.user],
            **{name: getattr(one.reason, name) for name in figures},
            "decision_id": one.decision_id,
            "end_ms": one.end_ms,
            "due_ms": one.due_ms,
        }
        for one in throttles
    ]


EXCEPTED = {key: None if key.client_id is not None else ("web", key.user) for key in KEYS}


def excepted_of(keys: list[Target]) -> NDArray[np.object_]:
    found = np.empty(len(keys), np.object_)
    found[:] = [EXCEPTED[key] for key in keys]
    return found


def keys_of(keys: list[Target]) -> Pair:
    types = [QUOTA_TYPES.index(key.quota_type or "consumer_byte_rate") for key in keys]
    return ENGINE.keys_of(clients(*keys), np.array(types, np.int64))


class SameThrottles(RuleBasedStateMachine):
    """Throttles begin, change, come due and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = ThrottleLedger(start_ms=0, forgotten_slack=0)
        self.objects = Ledger()
        self.now_ms = 0
        self.begun = 0

    @rule(keys=CLIENTS, for_ms=st.sampled_from([0, 1, 40, 5_000]), bound=st.sampled_from([None, 5.0]), data=st.data())
    def hold(self, keys: list[Target], for_ms: int, bound: float | None, data: st.DataObject) -> None:
        throttles = []
        for key in keys:
            self.begun += 1
            quota_type = key.quota_type or "consumer_byte_rate"
            why = reason(bound=bound, level=data.draw(st.sampled_from([None, 3])), quota_type=quota_type)
            end_ms = self.now_ms + for_ms + self.begun % 3
            throttles.append(Held(key, why, f"decision {self.begun}", end_ms, max(end_ms - 30, self.now_ms)))
        ids = np.array([one.decision_id for one in throttles], np.object_)
        times = (np.array([getattr(one, name) for one in throttles], np.int64) for name in ("end_ms", "due_ms"))
        claimed = claims(*(one.reason for one in throttles))
        none = np.zeros(len(keys), np.int64)
        standing = claimed.quota_type, claimed.bound, claimed.level, none, none
        self.columns.hold(keys_of(keys), clients(*keys), excepted_of(keys), *standing, ids, *times)
        for one in throttles:
            self.objects.hold(one)

    @rule(keys=CLIENTS)
    def drop(self, keys: list[Target]) -> None:
        self.columns.drop(keys_of(keys))
        for key in keys:
            self.objects.drop(key)

    @rule(by_ms=st.sampled_from([0, 1, 35, 6_000]))
    def pop_due(self, by_ms: int) -> None:
        self.now_ms += by_ms
        assert self.columns.pop_due(self.now_ms) == self.objects.pop_due(self.now_ms)

    @rule(waits=st.booleans())
    def take(self, waits: bool) -> None:
        taken, popped_ms = self.columns.take_due()
        expected = self.objects.take_due()
        assert self.columns.rows(taken).to_pylist() == rows_of([throttle for throttle, _ in expected])
        assert popped_ms.tolist() == [at_ms for _, at_ms in expected]
        if waits:
            self.columns.wait_for_end(taken)
            for throttle, _ in expected:
                self.objects.hold(replace(throttle, due_ms=throttle.end_ms))

    @invariant()
    def the_same_are_held_in_the_same_order(self) -> None:
        held = list(self.objects.held.values())
        assert len(self.columns) == len(held)
        assert self.columns.rows(self.columns.held()).to_pylist() == rows_of(held)

    @invariant()
    def each_client_is_found(self) -> None:
        running = self.columns.running(keys_of(KEYS))
        assert running.is_held.tolist() == [key in self.objects.held for key in KEYS]
        for key, decision_id, end_ms in zip(KEYS, running.decision_ids, running.end_ms, strict=True):
            if (held := self.objects.held.get(key)) is not None:
                assert (end_ms, decision_id) == (held.end_ms, held.decision_id)


SameThrottlesTest = SameThrottles.TestCase
SameThrottlesTest.settings = settings(max_examples=40, stateful_step_count=25)
