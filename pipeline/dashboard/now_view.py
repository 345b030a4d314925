"""What the view Now shows, as a function of what is held, used and wanted at `now_ms`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline.dashboard.live_rates import SensorRate
from pipeline.dashboard.running_throttles import RunningThrottle
from schemas.throttle_record import verb, written_ms

MOST_THROTTLED: Final = 200
MOST_TALKERS: Final = 20
MOST_RECENT: Final = 30
RATE_SECONDS: Final = 10
"""Over how many whole seconds the totals are averaged: as long as a full window of Kafka's defaults."""

Levels = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""(user, client_id, quota_type) -> a row of `LiveRates.resolve`."""


def throttled_row(one: RunningThrottle, levels: Levels) -> dict[str, Any]:
    """A client that is held: who, by what, since when and until when, whose, and at which level."""
    row = one.row
    level = levels.get((row["user"], row["client_id"], row["quota_type"]), {})
    return {
        "user": row["user"],
        "client_id": row["client_id"],
        "broker_id": row["broker_id"],
        "quota_type": row["quota_type"],
        "observed": row["observed"],
        "bound": row["bound"],
        "since_ms": one.since_ms,
        "throttled_until_ms": row["throttled_until_ms"],
        "owed_until_ms": max(written_ms(row) + row["owed_ms"], row["throttled_until_ms"]),
        "cause": row["cause"],
        "records": one.records,
        "level": level.get("level"),
        "owner": level.get("owner"),
        "decision_id": row["decision_id"],
        "quota_version": row["quota_version"],
    }


def talker_row(rate: SensorRate, held: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    """A sensor and how much of its bound it uses."""
    return {
        "user": rate.user,
        "client_id": rate.client_id,
        "sensor_user": rate.sensor_user,
        "sensor_client_id": rate.sensor_client_id,
        "broker_id": rate.broker_id,
        "clients": rate.clients,
        "quota_type": rate.quota_type,
        "observed": rate.observed,
        "bound": rate.bound,
        "used": rate.used,
        "level": rate.level,
        "mode": rate.mode,
        "owner": rate.owner,
        "throttled": (rate.user, rate.client_id) in held,
    }


def event_row(row: Mapping[str, Any], levels: Levels) -> dict[str, Any]:
    """A record of the throttle topic, in short, with the owner of the quota that its client has now."""
    return {
        "at_ms": written_ms(row),
        "verb": verb(row),
        "cause": row["cause"],
        "user": row["user"],
        "client_id": row["client_id"],
        "broker_id": row["broker_id"],
        "quota_type": row["quota_type"],
        "observed": row["observed"],
        "bound": row["bound"],
        "throttle_time_ms": row["throttle_time_ms"],
        "throttled_until_ms": row["throttled_until_ms"],
        "owed_ms": row["owed_ms"],
        "lateness_ms": row["lateness_ms"],
        "decision_id": row["decision_id"],
        "quota_version": row["quota_version"],
        "publish_seq": row["publish_seq"],
        "owner": levels.get((row["user"], row["client_id"], row["quota_type"]), {}).get("owner"),
    }


def totals(
    running: Sequence[RunningThrottle],
    seconds: Sequence[tuple[int, int, int, int]],
    sensors: Sequence[SensorRate],
    active_clients: int,
) -> dict[str, Any]:
    """The figures over everything.

    Args:
        running: Who is held.
        seconds: See `LiveRates.totals`. The newest second is not whole yet, and is in no mean.
        sensors: All rates.
        active_clients: How many clients sent anything lately.
    """
    whole = seconds[-RATE_SECONDS - 1 : -1]
    of_type = Counter(one.row["quota_type"] for one in running)
    per_second = [sum(second[place] for second in whole) / max(len(whole), 1) for place in (1, 2, 3)]
    return {
        "throttled": len(running),
        "throttled_by_type": dict(of_type),
        "active_clients": active_clients,
        "produced_bytes_per_second": per_second[0],
        "fetched_bytes_per_second": per_second[1],
        "requests_per_second": per_second[2],
        "over_bound": sum(one.used > 1 and one.mode == "enforce" for one in sensors),
        "over_shadow_bound": sum(one.used > 1 and one.mode == "shadow" for one in sensors),
        "near_bound": sum(0.8 <= one.used <= 1 and one.mode == "enforce" for one in sensors),
    }
