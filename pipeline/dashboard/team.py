"""The page of one team: what it uses, its bound, who holds it, and what to do. A signed link opens it, and no more.

A link names a cluster, a tenant or a user, and when it ends. The signature is over all of that. Its key is made of the
dashboard's token: who has the token can make links, another token ends all of them, and without one there are none.

The page is made here and needs no script, so the link opens no path of the API. It reads only rows of this tenant, or
sensors of this user: a sensor of a client-id alone is used by others, too.
"""

import hmac
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlencode

from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.state import State, client_text, nearest_tenants, used_text
from pipeline.errors import PipelineError, Unreachable, printable
from pipeline.tables.queries import Row, predicates
from pipeline.tables.rates import NEAR, Rates, read_rates
from quota.entity import QUOTA_TYPES
from quota.tenants import DEMAND_SHARE, MEMBER_LEVEL, Tenant
from quota.units import age_text, rate_text

Kind = Literal["tenant", "user"]
KINDS: Final[tuple[Kind, ...]] = ("tenant", "user")
_PURPOSE: Final = b"kquota: the link of a team, 1"
_MOST_ROWS: Final = 200
_STALE_MS: Final = 10_000
_MOST_DIGITS: Final = 14
LAST_UNTIL_MS: Final = 10**_MOST_DIGITS - 1
"""The last end that a link can have."""
_SHOWN_FROM: Final = 0.05
_MEMBER_COLUMNS: Final = ("who", "type", "uses", "may use", "part", "held by its brokers")
_NOT_VALID: Final = "is not valid"


class LinkRefused(PipelineError):
    """A link that opens nothing: it was changed, it has ended, or it is of another dashboard."""

    exit_code = 2

    def __init__(self, why: str) -> None:
        super().__init__(f"this link {why}", "ask for a new one where you got it; kquota tenants link makes it")


class Team(NamedTuple):
    """What a link opens."""

    cluster: str
    kind: Kind
    name: str
    until_ms: int

    def signature(self, token: str) -> str:
        """It is another one if anything of the link is, or the token."""
        key = hmac.digest(token.encode(), _PURPOSE, "sha256")
        return hmac.digest(key, json.dumps(self).encode(), "sha256").hex()

    def link(self, address: str, token: str) -> str:
        """The link below the address of a dashboard."""
        given = {"cluster": self.cluster, self.kind: self.name, "until": self.until_ms}
        return f"{address.rstrip('/')}/team?{urlencode({**given, 'signature': self.signature(token)})}"


def opened(parameters: Sequence[tuple[str, str]], token: str | None, now_ms: int) -> Team:
    """What a link opens now; `LinkRefused` if it opens nothing.

    * `parameters`: percent-decoded, in the order given.
    """
    given = dict(parameters)
    for kind in KINDS if token is not None and len(parameters) == len(given) else ():
        until = given.get("until", "")
        is_instant = until.isascii() and until.isdecimal() and 12 <= len(until) <= _MOST_DIGITS and until[0] != "0"
        if given.keys() != {"cluster", kind, "until", "signature"} or not (is_instant and given[kind]):
            continue
        team = Team(given["cluster"], kind, given[kind], int(until))
        if token is None or not hmac.compare_digest(given["signature"].encode(), team.signature(token).encode()):
            continue
        if team.until_ms <= now_ms:
            why = f"ended at {_instant(team.until_ms)}"
            raise LinkRefused(why)
        return team
    raise LinkRefused(_NOT_VALID)


def _instant(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


# What the page has. Pure, but for the reading of the rates.


_OF_SENSOR: Final = ("quota_type", "broker_id", "tenant", "sensor_user", "sensor_client_id")


def read_members(reader: TablesReader, team: Team, tenants: Sequence[Tenant]) -> tuple[int, list[Row], list[Row]]:
    """The instant of the rates, those of the team's sensors, and the sums of its tenant.

    Of each quota type the sensor with the largest share is first.
    """
    names = ", ".join((*_OF_SENSOR, "level", "mode", "observed", "bound", "own_bound", "broker_held_share"))
    of_team = predicates([("tenant" if team.kind == "tenant" else "sensor_user", "=", team.name)])
    of_sensors = f"SELECT {names} FROM source WHERE clients IS NOT NULL AND level IS NOT NULL"  # noqa: S608 - ours
    sql = f"{of_sensors} AND {of_team} ORDER BY share DESC, sensor_user, sensor_client_id"

    def read(rates: Rates) -> tuple[int, list[Row], list[Row]]:
        sums = nearest_tenants(rates.tenants(tenants), tenants) if tenants else []
        return rates.as_of_ms, rates.rows(sql), sums

    as_of_ms, rows, sums = read_rates(reader.root, read)
    first: dict[tuple[str, ...], Row] = {}
    for row in sorted(rows, key=lambda row: row["mode"] != "enforce"):
        first.setdefault(tuple(row[name] for name in _OF_SENSOR), row)
    found = sorted(first.values(), key=lambda row: (QUOTA_TYPES.index(row["quota_type"]), -_share(row)))
    return as_of_ms, found, sorted(sums, key=lambda row: QUOTA_TYPES.index(row["quota_type"]))


def advice(rows: Sequence[Row], held: Sequence[Row], tenant: Tenant | None, sums: Sequence[Row]) -> str:
    """What to do, in one or two sentences.

    * `sums`: what the team uses of the tenant's bound, of each quota type and broker.
    """
    near = (row for row in sums if row["is_at_bound"] or row["share"] >= DEMAND_SHARE)
    full = next((row for row in near if row["mode"] == "enforce"), None)
    if full is not None:
        of_sum = [row for row in rows if all(row[name] == full[name] for name in ("quota_type", "broker_id", "mode"))]
        most = _who(max(of_sum, key=lambda row: row["observed"]))
        use = (
            "The team is at its bound and wants more" if full["is_at_bound"] else "The bound of the team is nearly full"
        )
        return f"{use}. {most} uses most of it: let that send less, or ask for a higher bound."
    over = next((row for row in rows if row["mode"] == "enforce" and _share(row) >= NEAR), None)
    if over is None and not held:
        return "Nothing: all is within its bounds."
    who = _who(over) if over is not None else client_text(held[0]["user"], held[0]["client_id"])
    room = " The team has room, but its members lend one another nothing." if tenant and not tenant.lend else ""
    return f"Let {who} send less, or wait: a hold ends by itself. For more ask for a higher bound.{room}"


def _share(row: Mapping[str, Any]) -> float:
    return float(row["observed"] / row["bound"]) if row["bound"] else 0.0


def _who(row: Mapping[str, Any]) -> str:
    rest = ", clients without a quota of their own" if row["level"] == MEMBER_LEVEL else ""
    return client_text(row["sensor_user"], row["sensor_client_id"]) + rest


# The page.

_PAGE: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
    '<link rel="icon" href="/favicon.svg"><link rel="stylesheet" href="/static/style.css"></head>'
    "<body><main><h1>{title}</h1>{body}</main></body></html>"
)


def page(title: str, *texts: str, parts: Sequence[str] = (), again: bool = False) -> bytes:
    """A page of texts, and of parts that are HTML; with these, or `again`, it is loaded again each five seconds."""
    body = "".join([*(f'<p class="verdict">{_text(text)}</p>' for text in texts), *parts])
    refresh = '<meta http-equiv="refresh" content="5">' if parts or again else ""
    return _PAGE.format(title=_text(title), body=body, refresh=refresh).encode()


def team_page(reader: TablesReader, newest: Callable[[], State], team: Team, now_ms: int) -> bytes:
    """The page that a link opens; `LinkRefused` if it is of another cluster, `Unreachable` while none is known."""
    state = newest()
    if state.cluster is None:
        msg = "the cluster is not known: no micro-batch was read yet"
        raise Unreachable(msg, "repeat this in a second")
    if state.cluster != team.cluster:
        raise LinkRefused(_NOT_VALID)
    tenants = [one for one in reader.snapshot().tenants if (team.kind, team.name) == ("tenant", one.name)]
    as_of_ms, rows, sums = read_members(reader, team, tenants)
    tenant = next(iter(tenants), None)
    held = [dict(row) for row in state.running if row.get(team.kind) == team.name]
    whole = (
        (_type(row), *(rate_text(row["quota_type"], row[name]) for name in ("used", "bound")), used_text(row["share"]))
        for row in sums
    )
    holds = (
        (
            client_text(one["user"], one["client_id"]),
            _type(one),
            age_text(one["throttled_until_ms"] - now_ms),
        )
        for one in held
    )
    stale = f"These figures are {age_text(now_ms - as_of_ms)} old. " if now_ms - as_of_ms > _STALE_MS else ""
    ends = f"{stale}Cluster {team.cluster}, {_instant(as_of_ms)}. This link ends at {_instant(team.until_ms)}."
    parts = (
        _table("The whole team", ("type", "uses", "bound", "part"), whole),
        _table("Held by kquota now", ("who", "type", "for"), holds),
        _table("Members", _MEMBER_COLUMNS, (_cells(row, team.kind) for row in rows[:_MOST_ROWS])),
        f'<p class="quiet">{_text(ends)}</p>',
    )
    return page(f"{team.kind} {team.name}", advice(rows, held, tenant, sums), parts=parts)


def _cells(row: Row, kind: Kind) -> tuple[str, ...]:
    quota_type, own, seconds = row["quota_type"], row["own_bound"], round((row["broker_held_share"] or 0.0) * 60)
    times = row["bound"] / own if own else 1.0
    note = f", {times:.1f} × its own" if abs(times - 1) >= _SHOWN_FROM else ""
    note += "" if row["mode"] == "enforce" else ", not enforced"
    return (
        _who(row) + (f", in tenant {row['tenant']}" if kind == "user" and row["tenant"] else ""),
        _type(row),
        rate_text(quota_type, row["observed"]),
        rate_text(quota_type, row["bound"]) + note,
        used_text(_share(row)),
        f"{seconds} s of the last minute" if seconds else "",
    )


def _type(row: Mapping[str, Any]) -> str:
    name = row["quota_type"].partition("_")[0]
    return f"{name}, broker {row['broker_id']}" if row["broker_id"] else name


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{column}</th>" for column in columns)
    card = f'<section class="card"><header><h2>{title}</h2></header><table><tr>{head}</tr>{body}</table></section>'
    return card if body else ""


def _text(text: str) -> str:
    return escape(printable(text))
