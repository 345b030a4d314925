"""The page of an application team, `/me`: whether its client is throttled, in one sentence, and what to do.

A link opens it for one user, or one client (`links`). It has nothing of others: every row that is read is the user's.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from math import floor
from typing import Any, Final, Literal

from pipeline.dashboard.client import bands
from pipeline.dashboard.links import About
from pipeline.dashboard.live_rates import names_table
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.recent import TIME
from pipeline.dashboard.state import State, throttled_row
from pipeline.dashboard.verdict import NEAR, times_text
from pipeline.errors import TableMissing, printable
from pipeline.tables.address import table_missing
from pipeline.tables.port import Condition
from pipeline.tables.queries import rows_where
from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.units import age_text, rate_text, rounded_up

# How a client stands: one sentence. Pure.

Standing = Literal["throttled", "over", "near", "shadow", "within", "no quota", "never seen"]
STANDINGS: Final[tuple[Standing, ...]] = ("throttled", "over", "near", "shadow", "within", "no quota", "never seen")
"""The one that matters most first."""

_TYPES: Final = dict(zip(QUOTA_TYPES, ("produce", "fetch", "request time"), strict=True))
_DAYS: Final = 7
_DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Use:
    """What a client uses of a quota that holds for it. The rate is its sensor's, in bytes per second or percent."""

    quota_type: str
    observed: float
    bound: float
    mode: str = "enforce"

    @property
    def used(self) -> float:
        """O / T."""
        return self.observed / self.bound


@dataclass(frozen=True, slots=True)
class Held:
    """A throttle that runs: [since_ms, until_ms), the end with what is still owed. A debt holds also at O ≤ T."""

    quota_type: str
    observed: float
    bound: float | None
    since_ms: int
    until_ms: int


def standing_of(uses: Sequence[Use], held: Held | None, was_seen: bool, now_ms: int) -> tuple[Standing, str]:
    """How a client stands, and the sentence about it, without a full stop.

    Args:
        uses: Of each quota type with a bound.
        held: The throttle that was recorded last; one that has ended counts no more.
        was_seen: The client sent anything in the last days.
    """
    if held is not None and held.until_ms > now_ms:
        return "throttled", f"You are throttled, not lagging: {_why(held)} {_since(held, now_ms)}"
    if not was_seen:
        return "never seen", f"No usage was seen in the last {_DAYS} days"
    found = _most_important(uses)
    if found is None:
        return "no quota", "You are not throttled: no quota holds for you"
    return found[0], f"{_BEGINNINGS[found[0]]}: {_figures(found[1])}"


_BEGINNINGS: Final[Mapping[Standing, str]] = {
    "over": "You are over your quota, and may be throttled at any time",
    "near": "You are near your quota",
    "shadow": "You are not throttled, and would be if your quota were enforced",
    "within": "You are within your quota",
}


def _most_important(uses: Sequence[Use]) -> tuple[Standing, Use] | None:
    enforced, shadow = (_largest(uses, mode) for mode in ("enforce", "shadow"))
    if enforced is not None and enforced.used >= NEAR:
        return ("over" if enforced.used > 1 else "near"), enforced
    if shadow is not None and shadow.used > 1:
        return "shadow", shadow
    nearest = enforced or shadow
    return None if nearest is None else ("within", nearest)


def advice_for(standing: Standing, uses: Sequence[Use], held: Held | None, who: str, minutes: int) -> list[str]:
    """What a team can do, a sentence each.

    Args:
        who: The client, for the request for more.
        minutes: In how many it was throttled in the last days.
    """
    if standing == "never seen":
        return ["Check user and client-id of this link: the user as the broker authenticates it, and client.id."]
    largest, when = _largest(uses, "shadow" if standing == "shadow" else "enforce"), "is {} now"
    if held is not None and standing == "throttled" and held.bound is not None:
        largest, when = Use(held.quota_type, held.observed, held.bound), "was {} at the last decision"
    if largest is None or standing in {"within", "no quota"}:
        return []
    observed, bound = (_rate(largest.quota_type, value) for value in (largest.observed, largest.bound))
    more = f" Enough for it: {largest.quota_type}={_asked(largest)}." if largest.used > 1 else ""
    days = f"throttled in {minutes} minutes of the last {_DAYS} days"
    return [
        f"Slow down: stay below {bound} ({_TYPES[largest.quota_type]}); it {when.format(observed)}.",
        _BATCH[largest.quota_type],
        f"Ask for more, with these figures: {who} uses {observed} of {bound} ({largest.quota_type}), {days}.{more}",
    ]


_BATCHES: Final = (
    "larger batches compress better, and compressed bytes count (compression.type, linger.ms, batch.size)",
    "compress where the records are produced, read them once for all uses, and leave out what is not used",
    "fewer and larger requests take less time (linger.ms, batch.size; fetch.min.bytes, fetch.max.wait.ms)",
)
_BATCH: Final = {name: f"Batch: {text}." for name, text in zip(QUOTA_TYPES, _BATCHES, strict=True)}


def minutes_by_day(minutes_ms: Iterable[int], now_ms: int) -> list[dict[str, Any]]:
    """The number of minutes in each of the last seven UTC days, today last. Minutes may repeat themselves."""
    counts = Counter(minute_ms // _DAY_MS for minute_ms in set(minutes_ms))
    today = now_ms // _DAY_MS
    return [
        {"day": _instant(day * _DAY_MS)[:10], "throttled_minutes": counts[day]}
        for day in range(today - _DAYS + 1, today + 1)
    ]


def minutes_of(spans: Iterable[Mapping[str, Any]], since_ms: int, until_ms: int) -> Iterator[int]:
    """The minutes of [since_ms, until_ms), by their starts, in which a client was held; see `client.bands`."""
    for span in spans:
        first_ms, end_ms = max(span["start_ms"], since_ms), min(span["end_ms"], until_ms)
        if first_ms < end_ms:
            yield from range(first_ms // _MINUTE_MS * _MINUTE_MS, end_ms, _MINUTE_MS)


def _largest(uses: Iterable[Use], mode: str) -> Use | None:
    return max((one for one in uses if one.mode == mode), key=lambda one: one.used, default=None)


def _why(held: Held) -> str:
    if held.bound is None:
        return f"what you used is still owed ({_TYPES[held.quota_type]})"
    quota, times = f"{_rate(held.quota_type, held.bound)} ({_TYPES[held.quota_type]})", held.observed / held.bound
    if times <= 1:
        return f"what you used above your {quota} is still owed,"
    return f"{times_text(times)} your {quota}"


def _since(held: Held, now_ms: int) -> str:
    is_today = held.since_ms // _DAY_MS == now_ms // _DAY_MS
    since = _instant(held.since_ms)[11:16] if is_today else _instant(held.since_ms)[:16]
    return f"since {since} UTC, {age_text(held.until_ms - now_ms + 999)} left"


def _figures(one: Use) -> str:
    """The percentage is rounded down: 100 % is the bound."""
    rates = (_rate(one.quota_type, value) for value in (one.observed, one.bound))
    return f"{' of '.join(rates)} ({_TYPES[one.quota_type]}), {floor(one.used * 100)} %"


def _rate(quota_type: str, value: float) -> str:
    return rate_text(quota_type, value).replace(".0 ", " ")


def _asked(one: Use) -> str:
    return _rate(one.quota_type, rounded_up(one.observed, one.quota_type)).replace(" ", "")


def _instant(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


# What is read: rows of the link's user alone.

_MOST_CLIENTS: Final = 50


def team_document(reader: TablesReader, state: State, about: About) -> dict[str, Any]:
    """All that the page shows, and what `/me.json` is. Raises `TableMissing` without quotas."""
    user, now_ms = about.user, state.now_ms
    week_ms = (now_ms // _DAY_MS - _DAYS + 1) * _DAY_MS
    seen = _client_ids(reader, about, week_ms)
    held = _held(state, about)
    names = sorted({*seen, *held} | ({about.client_id} if about.client_id is not None else set()))
    week = minutes_by_day(_throttled_minutes(reader, about, week_ms, now_ms), now_ms)
    minutes = sum(day["throttled_minutes"] for day in week)
    uses = _uses(reader, state, user, names)
    clients = [_client(user, name, uses[name], held.get(name), name in seen, minutes, now_ms) for name in names]
    clients.sort(key=lambda one: (STANDINGS.index(one["standing"]), one["client_id"]))
    return {
        "now_ms": now_ms,
        "user": user,
        "client_id": about.client_id,
        **_headline(about, clients, state),
        "clients": [
            {name: value for name, value in one.items() if name != "advice"} for one in clients[:_MOST_CLIENTS]
        ],
        "clients_total": len(clients),
        "week": week,
        "throttled_minutes": minutes,
    }


def _headline(about: About, clients: Sequence[Mapping[str, Any]], state: State) -> dict[str, Any]:
    """The client for which it is worst stands for all; how old the figures are, if they are not those of now."""
    if clients:
        standing, sentence, advice = (clients[0][name] for name in ("standing", "sentence", "advice"))
    else:
        standing, sentence = standing_of((), None, False, state.now_ms)
        advice = advice_for(standing, (), None, "", 0)
    if about.client_id is None and len(clients) > 1:
        sentence = f"{_name(clients[0]['client_id'])}: {sentence}"
    age_ms, is_current = state.health.last_batch_age_ms, state.health.state in {"live", "quiet"}
    if age_ms is None:
        sentence, is_current = f"Nothing is known yet: {sentence}", False
    elif not is_current:
        sentence += f" (as of {_instant(state.now_ms - age_ms)[11:]} UTC; newer figures are missing)"
    as_of_ms = None if age_ms is None else state.now_ms if is_current else state.now_ms - age_ms
    return {"standing": standing, "sentence": f"{sentence}.", "is_current": is_current, "as_of_ms": as_of_ms,
            "advice": advice}  # fmt: skip


def _client(
    user: str, client_id: str, uses: Sequence[Use], held: Held | None, was_seen: bool, minutes: int, now_ms: int
) -> dict[str, Any]:
    standing, sentence = standing_of(uses, held, was_seen or held is not None, now_ms)
    shown = ("quota_type", "observed", "bound", "used", "mode")
    return {
        "client_id": client_id,
        "standing": standing,
        "sentence": sentence,
        "throttled": None if held is None else {name: getattr(held, name) for name in Held.__slots__},
        "quotas": [{name: getattr(one, name) for name in shown} for one in uses],
        "advice": advice_for(standing, uses, held, _who(user, client_id), minutes),
    }


def _held(state: State, about: About) -> dict[str, Held]:
    """By client-id; at several brokers the one that ends last."""
    found: dict[str, Held] = {}
    for one in state.running:
        row = throttled_row(one, state.levels)
        if row["user"] != about.user or about.client_id not in {None, row["client_id"]}:
            continue
        figures = (row[name] for name in ("quota_type", "observed", "bound", "since_ms", "owed_until_ms"))
        held, before = Held(*figures), found.get(row["client_id"])
        if before is None or before.until_ms < held.until_ms:
            found[row["client_id"]] = held
    return found


def _uses(reader: TablesReader, state: State, user: str, client_ids: Sequence[str]) -> dict[str, list[Use]]:
    """By client-id: each quota type with a bound. The rate of a sensor that has used nothing is 0."""
    snapshot = reader.snapshot()
    if snapshot is None:
        raise table_missing(reader.tables["quotas"].uri)
    found: dict[str, list[Use]] = {name: [] for name in client_ids}
    if not client_ids:
        return found
    rates: dict[tuple[Any, ...], float] = {}
    for of_user in (user, ""):
        for one in state.sensors.where(sensor_user=of_user):  # of several brokers the nearest to its bound comes first
            rates.setdefault((one.quota_type, one.sensor_user, one.sensor_client_id, one.level), one.observed)
    engine = QuotaEngine()
    engine.load_quotas(snapshot)
    for row in engine.resolve(names_table([(user, client_id) for client_id in client_ids])).to_pylist():
        if row["bound"] is not None and row["mode"] in {"enforce", "shadow"}:
            sensor = tuple(row[name] for name in ("quota_type", "sensor_user", "sensor_client_id", "level"))
            use = Use(row["quota_type"], rates.get(sensor, 0.0), row["bound"], row["mode"])
            found[row["client_id"]].append(use)
    return found


def _client_ids(reader: TablesReader, about: About, since_ms: int) -> set[str]:
    """Those of the link that sent anything lately, or since an instant."""
    rows = rows_where(["client_id", "minute_start_ms"], _of(about, since_ms))
    found = reader.clients_seen().client_ids_of(about.user)
    with suppress(TableMissing):
        newest = f"SELECT client_id, max(minute_start_ms) AS last FROM ({rows}) GROUP BY 1 ORDER BY 2 DESC"  # noqa: S608 - quoted there
        stored = reader.tables["usage_by_minute"].query(f"{newest} LIMIT {10 * _MOST_CLIENTS}")
        found |= {*stored["client_id"].to_pylist()}
    return {name for name in found if about.client_id in {None, name}}


def _throttled_minutes(reader: TablesReader, about: About, since_ms: int, now_ms: int) -> set[int]:
    """The starts of the minutes in which it was held at all: of the roll-up, and of records that it has not got yet."""
    rows = rows_where(["minute_start_ms"], [*_of(about, since_ms), ("held_ms", ">", 0)])
    found: set[int] = set()
    with suppress(TableMissing):
        stored = reader.tables["throttle_by_minute"].query(f"SELECT DISTINCT minute_start_ms FROM ({rows})")  # noqa: S608 - quoted there
        found |= {*stored["minute_start_ms"].to_pylist()}
    held = reader.recent.events.held
    if held is None:
        return found
    recent = held.where((about.user, about.client_id), TIME, since_ms, now_ms + _MINUTE_MS)
    by_client: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in recent.to_pylist():
        if row["user"] == about.user and about.client_id in {None, row["client_id"]}:
            by_client.setdefault((row["broker_id"], row["client_id"]), []).append(row)
    for records in by_client.values():
        found |= {*minutes_of(bands(records, since_ms), since_ms, now_ms)}
    return found


def _of(about: About, since_ms: int) -> list[Condition]:
    names: list[Condition] = [("user", "=", about.user)]
    names += [] if about.client_id is None else [("client_id", "=", about.client_id)]
    return [*names, ("minute_start_ms", ">=", since_ms)]


# How it is shown.

_LONGEST_NAME: Final = 100


def line_of_team(found: Mapping[str, Any]) -> str:
    """One line for a chat, with its end of line: who, the sentence, and the minutes of the last days."""
    minutes = f"Throttled in {found['throttled_minutes']} minutes of the last {_DAYS} days."
    return f"{_who(found['user'], found['client_id'])}: {found['sentence']} {minutes}\n"


def page_of_team(found: Mapping[str, Any]) -> str:
    """The page, without a script. It does not change by itself, and has a link that loads it again."""
    clients = found["clients"] if found["client_id"] is None and found["clients_total"] > 1 else []
    week = [[day["day"], str(day["throttled_minutes"])] for day in reversed(found["week"])]
    about = f"{_who(found['user'], found['client_id'])} · as of {_instant(found['now_ms'])} UTC · "
    parts = [
        f'<p class="quiet">{escape(about)}<a href="">Load again</a></p>',
        f'<h1 data-standing="{found["standing"]}">{escape(found["sentence"])}</h1>',
        _list("What to do", found["advice"]),
        _list("Your clients", [f"{_name(one['client_id'])}: {one['sentence']}." for one in clients]),
        _table("Now", ("quota", "rate", "bound", "used"), _rows_of_now(found["clients"])),
        _table("Minutes throttled, by day (UTC)", ("day", "minutes"), week),
    ]
    return _page("".join(parts))


def page_of_refusal(error: str, fix: str) -> str:
    """A page with a sentence, what to do, and a link."""
    first, then = (f"{text[:1].upper()}{text[1:]}." for text in (error, fix))
    link = '<p><a href="/">Open the dashboard</a></p>'
    return _page(f'<h1>{escape(printable(first))}</h1><p class="quiet">{escape(printable(then))}</p>{link}')


def _page(inner: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        'content="light dark"><title>Your quota · kquota</title><link rel="icon" href="/favicon.svg" '
        'type="image/svg+xml"><link rel="stylesheet" href="/static/style.css"></head>'
        f'<body><main class="me card pad" data-testid="me">{inner}</main></body></html>\n'
    )


def _list(title: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(one)}</li>' for one in sentences)}</ul>"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _rows_of_now(clients: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    several = len(clients) > 1
    return [
        [
            f"{_name(one['client_id'])}: {_TYPES[quota['quota_type']]}" if several else _TYPES[quota["quota_type"]],
            *(_rate(quota["quota_type"], quota[name]) for name in ("observed", "bound")),
            f"{floor(quota['used'] * 100)} %{' (shadow: not enforced)' if quota['mode'] == 'shadow' else ''}",
        ]
        for one in clients
        for quota in one["quotas"]
    ]


def _who(user: str, client_id: str | None) -> str:
    return _short(user) if client_id is None else f"{_short(user)}/{_short(client_id)}"


def _name(client_id: str) -> str:
    return _short(client_id) or "(no client-id)"


def _short(name: str) -> str:
    shown = printable(name[: _LONGEST_NAME + 1])
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 1]}…"
