"""The broker of these tests: its quotas are of no other test, which would be throttled by them."""

from collections.abc import Iterable, Mapping

from pipeline.brokers.native import NativeEntity, NativeQuota, NativeQuotas
from pipeline.cli.entity import java_double
from pipeline.cluster.connecting import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from tests.waiting import wait_until


def access_to(broker: EmbeddedBroker) -> ClusterAccess:
    """As its administrator."""
    return ClusterAccess(broker.bootstrap_servers)


def user(name: str | None) -> NativeEntity:
    return NativeEntity.of([("user", name)])


def client(name: str | None) -> NativeEntity:
    return NativeEntity.of([("client-id", name)])


def pair(user_name: str | None, client_id: str | None) -> NativeEntity:
    return NativeEntity.of([("user", user_name), ("client-id", client_id)])


def ip(name: str | None) -> NativeEntity:
    return NativeEntity.of([("ip", name)])


def values_in(native: NativeQuotas) -> dict[NativeEntity, dict[str, float]]:
    """What it describes."""
    quotas = native.describe()
    by_entity = {quota.entity: dict(quota.values) for quota in quotas}
    assert len(by_entity) == len(quotas), "no entity twice"
    return by_entity


def await_values(native: NativeQuotas, expected: Mapping[NativeEntity, Mapping[str, float]]) -> None:
    """Wait until the broker has heard of what its controller has stored."""
    wait_until(lambda: values_in(native) == expected, "the broker to hear of its quotas")


def clear(native: NativeQuotas) -> None:
    """Remove every quota."""
    there = values_in(native)
    assert native.alter({entity: dict.fromkeys(values) for entity, values in there.items()}) == []
    await_values(native, {})


def lines_of(quotas: Iterable[NativeQuota]) -> list[str]:
    """The lines that kafka-configs prints of these quotas, sorted."""
    return sorted(
        f"Quota configs for {quota.entity} are "
        + ", ".join(sorted(f"{key}={java_double(value)}" for key, value in quota.values.items()))
        for quota in quotas
    )
