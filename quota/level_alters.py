"""Alters of levels as plain values: what is stored of each, and how the state is restored from what was stored."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from quota.broker_entries import EntryKey, writable_level
from quota.broker_level import Floats
from quota.key_index import Ids
from quota.level_control import NEVER_MS, Cause, LevelState, Proposals


@dataclass(frozen=True, slots=True)
class LevelAlter:
    """One alter of one level.

    Attributes:
        key: the entity and the quota type.
        old: the level until then, per second.
        new: the level from then on, as Kafka takes it.
        bound: T.
        demand: per broker-id what was wanted there, per second; None where it counted as unbounded. In the order of the
            brokers.
        cause: the name of a `Cause`, in lower case.
        altered_at_ms: when, ms since the epoch.
    """

    key: EntryKey
    old: float
    new: float
    bound: float
    demand: dict[str, float | None]
    cause: str
    altered_at_ms: int

    @property
    def words(self) -> str:
        """The alter in a sentence.

        >>> key = EntryKey("alice", "", "producer_byte_rate")
        >>> print(LevelAlter(key, 100.0, 35.0, 100.0, {"1": None, "2": 30.0}, "together_above", 0).words)
        100 to 35 of 100 on each of 2 brokers: the brokers together would give more than the bound
        """
        brokers = f"each of {len(self.demand)} brokers"
        return f"{self.old:g} to {self.new:g} of {self.bound:g} on {brokers}: {Cause[self.cause.upper()].words}"


def alters_of(
    keys: Sequence[EntryKey],
    rows: Ids,
    bound: Floats,
    broker_ids: Sequence[str],
    state: LevelState,
    proposals: Proposals,
    now_ms: int,
) -> list[LevelAlter]:
    """What is written now.

    Args:
        keys: of all m entities.
        rows: those that are written, positions in `keys`.
        bound: T of all m entities.
        broker_ids: the brokers, in the order of the columns of the proposals.
        state: the levels until now.
        proposals: the levels from now on.
        now_ms: when.

    Returns:
        One alter per row, in the order of the rows. Pass their `new` to `LevelState.altered` when they are in force.
    """
    return [
        LevelAlter(
            keys[row],
            float(state.level[row]),
            writable_level(float(proposals.level[row]), float(bound[row]), keys[row].quota_type),
            float(bound[row]),
            {
                broker_id: None if np.isinf(rate) else float(rate)
                for broker_id, rate in zip(broker_ids, proposals.demand[row].tolist(), strict=True)
            },
            Cause(int(proposals.cause[row])).name.lower(),
            now_ms,
        )
        for row in rows.tolist()
    ]


def restored_state(
    keys: Sequence[EntryKey], alters: Iterable[LevelAlter], bound: Floats, brokers: int, now_ms: int
) -> LevelState:
    """The state of entities after a restart. Who throttles is seen again within seconds.

    Args:
        keys: of all m entities.
        alters: what was stored, in the order in which it was written. Alters of other keys are ignored.
        bound: T of all m entities; the level of one that was never altered.
        brokers: n.
        now_ms: the instant, not before the alters.
    """
    level = bound.astype(np.float64)
    altered_at_ms, over_at_ms = (np.full(len(keys), NEVER_MS, np.int64) for _ in range(2))
    places = {key: place for place, key in enumerate(keys)}
    for alter in alters:
        place = places.get(alter.key)
        if place is None:
            continue
        level[place], altered_at_ms[place] = alter.new, alter.altered_at_ms
        if alter.cause == Cause.TOGETHER_ABOVE.name.lower():
            over_at_ms[place] = alter.altered_at_ms
    return LevelState.start(level, altered_at_ms, over_at_ms, brokers, now_ms)
