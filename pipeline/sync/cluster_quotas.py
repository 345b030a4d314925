"""The brokers as the sync sees them: which there are, what values they hold, and changes that are made in order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Final, Protocol, Self

from pipeline.brokers.entity import NativeEntity, NativeQuota
from pipeline.brokers.native_quotas import NativeQuotas
from pipeline.cluster.access import ClusterAccess
from quota.broker_entries import EntryKey
from quota.broker_writes import Change

BATCH_SIZE: Final = 1_000
"""The largest number of entities that one request changes."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the brokers say at one moment.

    Attributes:
        broker_ids: Those that are up, as `usage` has them.
        held: Every value of kquota's quota types at entities that the quota table can name.
    """

    broker_ids: tuple[str, ...]
    held: Mapping[EntryKey, float]


class ClusterQuotas(Protocol):
    """The quotas of a cluster's brokers. A call that fails may have changed any part of what it was asked for."""

    def look(self) -> Look:
        """See what is there."""
        ...

    def alter(self, changes: Sequence[Change]) -> dict[EntryKey, str]:
        """Make changes; returns the keys that the brokers refuse, with the reason."""
        ...


class KafkaQuotas:
    """The quotas of a real cluster. Each call is one try. Connects at the first one, and again after a failure.

    Args:
        access: Of the cluster.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._native: NativeQuotas | None = None

    def look(self) -> Look:
        """See `ClusterQuotas`."""
        native = self._connected()
        return Look(tuple(map(str, native.broker_ids())), held_values(native.describe()))

    def alter(self, changes: Sequence[Change]) -> dict[EntryKey, str]:
        """See `ClusterQuotas`."""
        native, refused = self._connected(), {}
        by_entity = iter(_by_entity(changes).items())
        while batch := dict(islice(by_entity, BATCH_SIZE)):
            refused.update({refusal.entity: refusal.reason for refusal in native.alter(batch)})
        return {change.key: refused[entity] for change in changes if (entity := _entity_of(change.key)) in refused}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._native is not None:
            self._native.close()

    def _connected(self) -> NativeQuotas:
        if self._native is None:
            self._native = NativeQuotas(self._access, pauses_seconds=())
        return self._native


def held_values(quotas: Iterable[NativeQuota]) -> dict[EntryKey, float]:
    """The values of kquota's quota types at entities that the quota table can name."""
    return {
        EntryKey(*names, quota_type): value
        for quota in quotas
        if (names := quota.entity.row_names()) is not None
        for quota_type, value in quota.bounds.items()
    }


def _by_entity(changes: Iterable[Change]) -> dict[NativeEntity, dict[str, float | None]]:
    by_entity: dict[NativeEntity, dict[str, float | None]] = {}
    for change in changes:
        by_entity.setdefault(_entity_of(change.key), {})[change.key.quota_type] = change.new
    return by_entity


def _entity_of(key: EntryKey) -> NativeEntity:
    return NativeEntity.of_row(key.user, key.client_id)
