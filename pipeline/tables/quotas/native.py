"""The quotas of a cluster's brokers as quotas of the table; what the table can not hold is told, never dropped."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.brokers.entity import NativeQuota
from pipeline.tables.quotas.file import DeclaredQuota
from quota.bound_rules import bound_mistake
from quota.entity import DEFAULT, QUOTA_TYPES
from quota.units import exact_text


@dataclass(frozen=True, slots=True)
class NativeImport:
    """What becomes of native quotas.

    Attributes:
        declared: For the table, in the order of their entities, with exactly the bounds that the brokers have. A bound
            that can not be held is in none of them, so that the table keeps what it has there.
        left_out: What is not in them, a line each, in the same order: entity, values and the reason.
    """

    declared: tuple[DeclaredQuota, ...]
    left_out: tuple[str, ...]


def imported(quotas: Iterable[NativeQuota], factor: int) -> NativeImport:
    """Make quotas of the table from those of brokers.

    Args:
        quotas: In any order.
        factor: Each bound is multiplied by it. 1 keeps them. The number of brokers makes of what each broker allows
            what all of them allow together.
    """
    declared: list[DeclaredQuota] = []
    left_out: list[str] = []
    for quota in sorted(quotas, key=lambda quota: str(quota.entity)):
        names = quota.entity.row_names()
        if names is None:
            left_out.append(f"{quota.entity}: {_values(quota.values.items())}; {_why_unnamed(quota)}")
            continue
        scaled = {key: value * factor for key, value in quota.bounds.items()}
        refused = {key: mistake for key, value in scaled.items() if (mistake := bound_mistake(key, value))}
        if scaled.keys() - refused.keys():
            bounds = {key: scaled.get(key) for key in QUOTA_TYPES if key not in refused}
            declared.append(DeclaredQuota(*names, bounds, labels={}))
        reasons = [f"{_values([(key, scaled[key])])}; {mistake}" for key, mistake in refused.items()]
        if quota.others:
            reasons.append(f"{_values(quota.others.items())}; kquota does not meter it")
        left_out += [f"{quota.entity}: {reason}" for reason in reasons]
    return NativeImport(tuple(declared), tuple(left_out))


def _values(values: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{key}={_number(value)}" for key, value in values)


def _number(value: float) -> str:
    return exact_text(value) if abs(value) < float("inf") else str(value)


def _why_unnamed(quota: NativeQuota) -> str:
    unknown = sorted(kind for kind, _ in quota.entity.parts if kind not in {"user", "client-id"})
    if unknown:
        return f"kquota has no quotas for {', '.join(unknown)}"
    return f"a name of the table must not be empty, nor {DEFAULT}, which is reserved for the default"
