"""How long clients were really throttled in a range, by the stored rows of `decisions` and `throttle_events`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pipeline.replay.outcome import Outcome
from pipeline.tables.address import table_uri
from pipeline.tables.reading.time_slices import TimeSlices
from schemas.names import ClientKey

_LONGEST_THROTTLE_MS: Final = 3_600_000
_CLIENT: Final = ("broker_id", "user", "client_id")


def recorded_outcomes(root: str, since_ms: int, until_ms: int, sample_window_ms: int) -> dict[ClientKey, Outcome]:
    """For each client the sample windows with an applied decision, and the time it was throttled, renewals included.

    `deferred_bytes` is always 0: how many bytes a client held back is not known.

    Args:
        root: Of the tables.
        since_ms: Inclusive.
        until_ms: Exclusive.
        sample_window_ms: Length of the windows that are counted.
    """
    decisions = TimeSlices(table_uri(root, "decisions"), "evaluated_at_ms")
    rows = decisions.read([*_CLIENT, "evaluated_at_ms", "applied"], since_ms, until_ms)
    windows: dict[ClientKey, set[int]] = defaultdict(set)
    for row in rows.filter(rows["applied"]).to_pylist():
        windows[_client(row)].add(row["evaluated_at_ms"] // sample_window_ms)
    events = TimeSlices(table_uri(root, "throttle_events"), "evaluated_at_ms").read(
        [*_CLIENT, "publish_seq", "action", "evaluated_at_ms", "throttle_time_ms"],
        since_ms - _LONGEST_THROTTLE_MS,
        until_ms,
    )
    by_client: dict[ClientKey, list[dict[str, Any]]] = defaultdict(list)
    for row in events.sort_by("publish_seq").to_pylist():
        by_client[_client(row)].append(row)
    throttled_ms = {client: throttled_in(rows, since_ms, until_ms) for client, rows in by_client.items()}
    return {
        client: Outcome(len(windows.get(client, ())), throttled_ms.get(client, 0))
        for client in {*windows, *throttled_ms}
    }


def throttled_in(events: Iterable[Mapping[str, Any]], since_ms: int, until_ms: int) -> int:
    """How long one client was throttled in a range, in ms.

    The throttle of a record lasts until its end or until the next record of the client, whichever comes first: the
    next record is either another throttle, which replaces it, or a release. A record counts from the instant it was
    evaluated at, which is on the clock of the usage, as everything in a replay is.

    Args:
        events: Its rows of `throttle_events`, in the order of `publish_seq`.
        since_ms: Inclusive.
        until_ms: Exclusive.
    """
    whole_ms = from_ms = to_ms = 0
    for event in events:
        at_ms = event["evaluated_at_ms"]
        whole_ms += _overlap(from_ms, min(to_ms, at_ms), since_ms, until_ms)
        is_throttle = event["action"] == "throttle"
        from_ms, to_ms = (at_ms, at_ms + event["throttle_time_ms"]) if is_throttle else (0, 0)
    return whole_ms + _overlap(from_ms, to_ms, since_ms, until_ms)


def _overlap(from_ms: int, to_ms: int, since_ms: int, until_ms: int) -> int:
    return max(min(to_ms, until_ms) - max(from_ms, since_ms), 0)


def _client(row: Mapping[str, Any]) -> ClientKey:
    return ClientKey(row["broker_id"], row["user"], row["client_id"])
