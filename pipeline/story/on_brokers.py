"""What the brokers enforce now, and why, for people and for programs."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from quota.entity import label
from quota.units import rate_text

if TYPE_CHECKING:
    from pipeline.tables.brokers.enforced import Enforced


def on_brokers_row(one: "Enforced") -> dict[str, Any]:
    """For programs: the columns of the row of `broker_quotas`."""
    change = one.change
    return {
        **change.key._asdict(),
        "cluster": one.cluster,
        "value": change.new,
        "bound": change.bound,
        "kind": change.kind,
        "cause": change.cause,
        "demand": change.demand,
        "since_ms": one.at_ms,
    }


def on_brokers_line(one: "Enforced") -> str:
    """`350.0 kB/s of T 1.0 MB/s on each broker, for client-id 'etl', since …: why; asked for 1: 2.0 MB/s`."""
    from quota.broker_writes import WORDS  # noqa: PLC0415 - it loads numpy, which most stories need not

    change, key = one.change, one.change.key
    value, bound = (rate_text(key.quota_type, rate or 0.0) for rate in (change.new, change.bound))
    of_bound = "" if change.new == change.bound else f" of T {bound}"
    since = datetime.fromtimestamp(one.at_ms // 1000, UTC)
    wanted = ", ".join(
        f"{broker_id}: {'more than it gets' if rate is None else rate_text(key.quota_type, rate)}"
        for broker_id, rate in change.demand.items()
    )
    asked = f"; asked of broker {wanted}" if wanted else ""
    return (
        f"{value}{of_bound} on each broker, for {label(key.user, key.client_id)}, since {since:%Y-%m-%d %H:%M:%S} UTC: "
        f"{WORDS[change.cause]}{asked}"
    )
