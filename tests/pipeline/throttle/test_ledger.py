"""Held throttles by columns, compared with objects in a dictionary; clients that have gone are forgotten at once."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipeline.throttle.ledger import ThrottleLedger
from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.usage import Pair
from schemas.throttle_record import Target
from tests.pipeline.throttle.factories import Reason, claims, clients


@dataclass(frozen=True, slots=True)
class Held:
    """A running throttle."""

    key: Target
    reason: Reason
    decision_id: str
    end_ms: int
    due_ms: int
    submission: int


TARGETS = (("", None), ("c", None), (None, "producer_byte_rate"), (None, "request_percentage"))
KEYS = [Target(*names, *target) for names in product(("", "1"), ("u1", "u2", "u3\0")) for target in TARGETS]
ENGINE = QuotaEngine()
CLIENTS = st.lists(st.sampled_from(KEYS), max_size=len(KEYS))


def rows_of(throttles: list[Held]) -> list[dict[str, object]]:
    figures = ("quota_type", "bound", "level")
    return [
        {
            **one.key._asdict(),
            "except_client_ids": None if (excepted := excepted_of(one.key)) is None else [*excepted],
            **{name: getattr(one.reason, name) for name in figures},
            "decision_id": one.decision_id,
            "end_ms": one.end_ms,
            "due_ms": one.due_ms,
        }
        for one in throttles
    ]


def excepted_of(key: Target) -> tuple[str, ...] | None:
    return None if key.client_id is not None else ("web", key.user)


def keys_of(keys: list[Target]) -> Pair:
    types = [QUOTA_TYPES.index(key.quota_type or "consumer_byte_rate") for key in keys]
    return ENGINE.keys_of(clients(*keys), np.array(types, np.int64))


class SameThrottles(RuleBasedStateMachine):
    """Throttles begin, change, come due and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = ThrottleLedger(start_ms=0, forgotten_slack=0)
        self.held: dict[Target, Held] = {}
        self.waiting: dict[Target, Held] = {}  # for their check or end
        self.popped: dict[Target, int] = {}  # when
        self.now_ms = 0
        self.begun = 0

    def begin(self, throttle: Held) -> None:
        self.popped.pop(throttle.key, None)
        self.held[throttle.key] = self.waiting[throttle.key] = throttle

    @rule(keys=CLIENTS, for_ms=st.sampled_from([0, 1, 40, 5_000]), bound=st.sampled_from([None, 5.0]), data=st.data())
    def hold(self, keys: list[Target], for_ms: int, bound: float | None, data: st.DataObject) -> None:
        throttles = []
        for key in keys:
            self.begun += 1
            quota_type = key.quota_type or "consumer_byte_rate"
            why = Reason(bound=bound, level=data.draw(st.sampled_from([None, 3])), quota_type=quota_type)
            end_ms = self.now_ms + for_ms + self.begun % 3
            due_ms = max(end_ms - 30, self.now_ms)
            throttles.append(Held(key, why, f"decision {self.begun}", end_ms, due_ms, self.begun))
        excepted, ids = np.empty(len(keys), np.object_), np.empty(len(keys), np.object_)
        excepted[:], ids[:] = [excepted_of(key) for key in keys], [one.decision_id for one in throttles]
        times = (np.array([getattr(one, name) for one in throttles], np.int64) for name in ("end_ms", "due_ms"))
        claimed = claims(*(one.reason for one in throttles))
        none = np.zeros(len(keys), np.int64)
        standing = claimed.quota_type, claimed.bound, claimed.level, claimed.tenant, none, none
        self.columns.hold(keys_of(keys), clients(*keys), excepted, *standing, ids, *times)
        for one in throttles:
            self.begin(one)

    @rule(keys=CLIENTS)
    def drop(self, keys: list[Target]) -> None:
        self.columns.drop(keys_of(keys))
        for key in keys:
            for places in (self.held, self.waiting, self.popped):
                places.pop(key, None)

    @rule(by_ms=st.sampled_from([0, 1, 35, 6_000]))
    def pop_due(self, by_ms: int) -> None:
        self.now_ms += by_ms
        due = [one for one in self.waiting.values() if one.due_ms <= self.now_ms]
        for one in sorted(due, key=lambda one: (one.due_ms, one.submission)):
            del self.waiting[one.key]
            self.popped[one.key] = self.now_ms
        assert self.columns.pop_due(self.now_ms) == len(self.popped)

    @rule(waits=st.booleans())
    def take(self, waits: bool) -> None:
        taken, popped_ms = self.columns.take_due()
        expected = [self.held[key] for key in self.popped]
        assert self.columns.rows(taken).to_pylist() == rows_of(expected)
        assert popped_ms.tolist() == [*self.popped.values()]
        self.popped.clear()
        if waits:
            self.columns.wait_for_end(taken)
            for one in expected:
                self.begun += 1
                self.begin(replace(one, due_ms=one.end_ms, submission=self.begun))

    @invariant()
    def the_same_are_held_in_the_same_order_and_each_is_found(self) -> None:
        assert len(self.columns) == len(self.held)
        assert self.columns.rows(self.columns.held()).to_pylist() == rows_of([*self.held.values()])
        running = self.columns.running(keys_of(KEYS))
        found = zip(KEYS, running.is_held.tolist(), running.decision_ids, running.end_ms, strict=True)
        ends = {key: (decision_id, end_ms) for key, is_held, decision_id, end_ms in found if is_held}
        assert ends == {key: (one.decision_id, one.end_ms) for key, one in self.held.items()}


SameThrottlesTest = SameThrottles.TestCase
SameThrottlesTest.settings = settings(max_examples=60, stateful_step_count=25)
