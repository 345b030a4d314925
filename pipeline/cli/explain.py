"""Prints one decision: its numbers in words, its samples as a small chart."""

import sys
from typing import Any, Final

from pipeline.errors import printable
from pipeline.tables.quotas.origin import QuotaOrigin
from pipeline.tables.throttle_history import Story
from pipeline.throttle.log_line import clock_time, seconds

_BAR_WIDTH: Final = 40
_LEVELS: Final = (
    "",
    "its own user and client-id",
    "its user and the default client-id",
    "its user",
    "the default user and its client-id",
    "the default user and the default client-id",
    "the default user",
    "its client-id",
    "the default client-id",
)


def print_story(story: Story, sample_window_ms: int, origin: QuotaOrigin | None) -> None:
    """Print on stdout the decision, how its numbers are computed, its samples and the records published for it."""
    decision = [*_decision(story.decision), f"  T set     {origin_line(story.decision, origin)}"]
    lines = [*decision, "", *_samples(story, sample_window_ms), "", *_events(story.events)]
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


def origin_line(decision: dict[str, Any], origin: QuotaOrigin | None) -> str:
    """The edit that set T, in one line: version, old and new bound, when, by whom, why."""
    if origin is None:
        return f"quota table version {decision['quota_version']} can no longer be read"
    change = f"{_bound(origin.before)} → {_bound(origin.after)}" if origin.is_exact else f"{_bound(origin.after)}"
    line = f"{'by' if origin.is_exact else 'in or before'} quota table version {origin.version}: {change}"
    if origin.commit is None:
        return line
    line += f", {origin.commit.committed_at:%Y-%m-%d %H:%M:%S} UTC"
    audit = origin.commit.audit
    if audit is None:
        return f"{line}, by another tool ({origin.commit.operation})"
    return f"{line}, by {audit.actor} at {audit.host}" + (f": {audit.reason}" if audit.reason else ", no reason given")


def _bound(bound: float | None) -> str:
    return "none" if bound is None else f"{bound:.1f}"


def _decision(row: dict[str, Any]) -> list[str]:
    unit = "% of one thread" if row["quota_type"] == "request_percentage" else "bytes/s"
    observed, bound, window_ms = row["observed"], row["bound"], row["window_ms"]
    cap = "none" if row["max_throttle_time_ms"] is None else seconds(row["max_throttle_time_ms"])
    shared = " and ".join(
        part
        for part in (
            row["sensor_user"] and f"user {row['sensor_user']}",
            row["sensor_client_id"] and f"client-id {row['sensor_client_id']}",
        )
        if part
    )
    return [
        f"decision {row['decision_id']}: {row['user']}/{row['client_id']} is over {row['quota_type']}",
        f"  at        {clock_time(row['evaluated_at_ms'])} UTC, batch {row['batch_id']}, mode {row['mode']}"
        f"{', applied' if row['applied'] else ', not applied: the throttle of another quota type is longer'}",
        f"  quota     level {row['level']} ({_LEVELS[row['level']]}), quota table version {row['quota_version']}",
        f"  sensor    {shared}: everything that shares it is counted together",
        f"  observed  O = {observed:.1f} {unit}, over W = {seconds(window_ms)}",
        f"  bound     T = {bound:.1f} {unit}",
        f"  throttle  X = (O − T) / T · W = ({observed:.1f} − {bound:.1f}) / {bound:.1f} · {window_ms} ms "
        f"= {row['raw_throttle_time_ms']} ms",
        f"  capped    {row['throttle_time_ms']} ms (cap {cap}); the rest stays owed and is renewed",
    ]


def _samples(story: Story, sample_window_ms: int) -> list[str]:
    row = story.decision
    if not story.samples:
        return ["samples: no longer kept (usage is trimmed after its retention)"]
    if row["quota_type"] == "request_percentage":
        limit, of, name = row["bound"] * 1e7 * sample_window_ms / 1000, 1e6, "ms of thread time"
    else:
        limit, of, name = row["bound"] * sample_window_ms / 1000, 1e3, "kB"
    most = max(limit, *(amount for _, amount in story.samples))
    lines = [f"samples of {seconds(sample_window_ms)} ({name}; │ marks what the bound allows in one):"]
    mark = min(round(limit / most * _BAR_WIDTH), _BAR_WIDTH - 1)
    for start_ms, amount in story.samples:
        filled = round(amount / most * _BAR_WIDTH)
        bar = "".join("│" if place == mark else "█" if place < filled else " " for place in range(_BAR_WIDTH))
        lines.append(f"  {clock_time(start_ms)}  {bar} {amount / of:.1f}")
    return lines


def _events(events: list[dict[str, Any]]) -> list[str]:
    if not events:
        return ["published: nothing (recorded only: shadow, too old, or published before)"]
    lines = ["published:"]
    for event in events:
        until = (
            f"for {seconds(event['throttle_time_ms'])} until {clock_time(event['throttled_until_ms'])}"
            if event["action"] == "throttle"
            else ""
        )
        late = "" if event["lateness_ms"] is None else f", handed out {event['lateness_ms']} ms after it was due"
        lines.append(
            f"  #{event['publish_seq']} {clock_time(event['evaluated_at_ms'])} {event['action']:<8} "
            f"{event['cause']:<13} {until} owed {seconds(event['owed_ms'])}{late}".rstrip()
        )
    return lines
