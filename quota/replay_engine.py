"""The quota engine with answers by columns, for replays: no names in the answers, and one instant per client."""

from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from quota.decisions import Throttles
from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.key_index import Ids
from quota.owed import Ints, Owed
from quota.resolution import Side
from quota.sensors import Key
from quota.throttle_time import owed_time_ms
from quota.usage import EntityNames, Measure, Usage

_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class NumberedUsage(Usage):
    """Usage whose clients the caller has numbered, so that their names are read only once.

    Attributes:
        clients: number of the client of each row, int64[n]; the same client always has the same number.
        names: of n rows or more.
        names_start: place of the first row in `names`.
    """

    clients: Ids
    names_start: int

    @classmethod
    def of(cls, usage: Usage, clients: Ids) -> Self:
        """Add the numbers to usage."""
        return cls(usage.names, usage.window, usage.last_ms, usage.measures, clients, 0)

    def rows(self, start: int, stop: int) -> Self:
        """The rows start (inclusive) to stop (exclusive)."""
        produced, fetched, time = (
            Measure(one.values[start:stop], None if one.present is None else one.present[start:stop])
            for one in self.measures
        )
        return replace(
            self,
            window=self.window[start:stop],
            last_ms=self.last_ms[start:stop],
            measures=(produced, fetched, time),
            clients=self.clients[start:stop],
            names_start=self.names_start + start,
        )

    def own_names(self) -> EntityNames:
        """The names of these rows."""
        return self.names.slice(self.names_start, len(self.clients))


class ReplayEngine(QuotaEngine):
    """A `QuotaEngine` that works by the numbers of clients. `expire_idle` must not be called on it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._entity_of_client = np.zeros(0, np.int64)

    def throttles(self, usage: NumberedUsage, evaluated_at_ms: int) -> Throttles:
        """Do what `record` does, and return only the applied decisions, without names.

        Args:
            usage: what `Usage.read` has checked.
            evaluated_at_ms: not before any event and not before the last call's.

        Raises:
            InvalidUsage: the instant is before the last call's.
        """
        self._check_instant(evaluated_at_ms)
        judged = self._judge(usage, evaluated_at_ms)
        return Throttles.none() if judged is None else judged.throttles()

    def resolve_again(self, clients: Ids, names: pa.Table, evaluated_at_ms: int) -> None:
        """Find the sensors of clients under the quotas now in force; `owed_at` needs that after `load_quotas`.

        Args:
            clients: number of each of n clients, as in earlier usage.
            names: of the same clients: columns user, client_id and, in broker scope, broker_id.
            evaluated_at_ms: the instant of the change.
        """
        if self._sensors.recording and len(clients):
            self._grow(clients)
            entities, _ = self._sensors.look_up(EntityNames(names, self.scope == "broker"), evaluated_at_ms)
            self._entity_of_client[clients] = entities

    def owed_at(self, clients: Ids, at_ms: Ints) -> Owed:
        """What clients owe, each at its own instant. Reads only; the same figures as those of `evaluate`.

        Args:
            clients: their numbers, int64[n]. Each must have been resolved under the quotas in force: by a batch with
                usage of it, or by `resolve_again`. While no quota is in force any number may be asked: none owes.
            at_ms: the instants, int64[n], not before the last batch.
        """
        # Nobody is looked up while nothing records: the numbers of clients that came then are not known here.
        entities = self._entity_of_client[clients] if self._sensors.recording else clients
        shape = (len(QUOTA_TYPES), len(clients))
        bound, level = np.full(shape, np.inf), np.zeros(shape, np.int64)
        observed, tokens, window_ms = np.zeros(shape), np.zeros(shape), np.ones(shape, np.int64)
        answers = self._answers()
        for key in self._sensors.recording:
            side, quota_type = key
            if side is Side.SHADOW:
                continue
            sensors, of_type = self._sensors.sensors_of(key, entities), self._sensors.by_key[key]
            bound[quota_type] = of_type.bound[sensors]
            level[quota_type] = self._sensors.resolution.levels_of(of_type.quota[sensors])
            observed[quota_type], window_ms[quota_type] = answers.observed(key, sensors, at_ms)
            if self.carry_debt:
                tokens[quota_type] = answers.tokens(quota_type, sensors, bound[quota_type], at_ms)
        return Owed(bound, level, window_ms, owed_time_ms(observed, window_ms, tokens, bound))

    def _look_up(self, batch: Usage, now_ms: int) -> tuple[Ids, dict[Key, Ids]]:
        if not isinstance(batch, NumberedUsage):
            return super()._look_up(batch, now_ms)
        self._grow(batch.clients)
        entities = self._entity_of_client[batch.clients]
        of_row = self._sensors.look_up_again(entities)
        if of_row is None:
            entities, of_row = self._sensors.look_up(batch.own_names(), now_ms)
            self._entity_of_client[batch.clients] = entities
        return entities, of_row

    def _grow(self, clients: Ids) -> None:
        """Make room for all of these numbers, at least one."""
        room = 2 * (int(clients.max()) + 1) - len(self._entity_of_client)
        if room > len(self._entity_of_client):
            self._entity_of_client = np.pad(self._entity_of_client, (0, room), constant_values=_UNKNOWN)
