"""The page of one team: what it uses, its bound, who holds it, and what to do. A signed link opens it, and no more.

A link holds a cluster, a tenant or a user, and when it ends, signed (itsdangerous) with the dashboard's token: who has
the token can make links, another token ends all of them, and without one there are none.

The page is made here and needs no script, so the link opens no path of the API. It reads only rows of this tenant, or
sensors of this user: a sensor of a client-id alone is used by others, too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from typing import Any, Final, Literal, NamedTuple

from itsdangerous import BadData, URLSafeSerializer

from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.state import State, client_text, nearest_tenants, used_text
from pipeline.errors import PipelineError, Unreachable, printable
from pipeline.tables.queries import Row, predicates
from pipeline.tables.rates import NEAR, Rates, are_fresh, read_rates
from quota.entity import QUOTA_TYPES
from quota.tenants import DEMAND_SHARE, MEMBER_LEVEL, Tenant
from quota.units import age_text, rate_text

Kind = Literal["tenant", "user"]
_PURPOSE: Final = "kquota: the link of a team, 1"
_MOST_ROWS: Final = 200
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

    def link(self, address: str, token: str) -> str:
        """The link below the address of a dashboard."""
        return f"{address.rstrip('/')}/team?link={_signed_with(token).dumps(self)}"


def _signed_with(token: str) -> URLSafeSerializer:
    return URLSafeSerializer(token, salt=_PURPOSE, signer_kwargs={"digest_method": sha256, "key_derivation": "hmac"})


def opened(link: str, token: str | None, now_ms: int) -> Team:
    """What the parameter `link` of a link opens now; `LinkRefused` if it opens nothing."""
    try:
        team = Team(*_signed_with(token).loads(link)) if token is not None else None
    except BadData:
        team = None
    if team is None:
        raise LinkRefused(_NOT_VALID)
    if team.until_ms <= now_ms:
        why = f"ended at {_instant(team.until_ms)}"
        raise LinkRefused(why)
    return team


def _instant(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def read_members(reader: TablesReader, team: Team, tenants: Sequence[Tenant]) -> tuple[int, list[Row], list[Row]]:
    """The instant of the rates, those of the team's sensors, and the sums of its tenant.

    Of each quota type the sensor with the largest share is first. What is enforced is shown, not its shadow.
    """
    of_sensor = "quota_type, broker_id, tenant, sensor_user, sensor_client_id"
    of_team = predicates([("tenant" if team.kind == "tenant" else "sensor_user", "=", team.name)])
    sql = (
        f"SELECT {of_sensor}, level, mode, observed, bound, own_bound, share, broker_held_share, "  # noqa: S608 - ours
        f"ROW_NUMBER() OVER (PARTITION BY {of_sensor} ORDER BY mode) AS place FROM source "
        f"WHERE clients IS NOT NULL AND level IS NOT NULL AND {of_team} ORDER BY share DESC, {of_sensor}"
    )

    def read(rates: Rates) -> tuple[int, list[Row], list[Row]]:
        sums = nearest_tenants(rates.tenants(tenants), tenants) if tenants else []
        return rates.as_of_ms, [row for row in rates.rows(sql) if row["place"] == 1], sums

    as_of_ms, *found = read_rates(reader.root, read)
    rows, sums = (sorted(of, key=lambda row: QUOTA_TYPES.index(row["quota_type"])) for of in found)
    return as_of_ms, rows, sums


def advice(rows: Sequence[Row], held: Sequence[Row], tenant: Tenant | None, sums: Sequence[Row]) -> str:
    """What to do, in one or two sentences.

    * `sums`: what the team uses of the tenant's bound, of each quota type and broker.
    """
    near = (row for row in sums if row["is_at_bound"] or row["share"] >= DEMAND_SHARE)
    full = next((row for row in near if row["mode"] == "enforce"), None)
    if full is not None:
        of_sum = [row for row in rows if all(row[name] == full[name] for name in ("quota_type", "broker_id", "mode"))]
        most = _who(max(of_sum, key=lambda row: row["observed"]))
        is_at = "at its bound and wants more" if full["is_at_bound"] else "near its bound"
        return f"The team is {is_at}. {most} uses most of it: let that send less, or ask for a higher bound."
    over = next((row for row in rows if row["mode"] == "enforce" and row["share"] >= NEAR), None)
    if over is None and not held:
        return "Nothing: all is within its bounds."
    who = _who(over) if over is not None else client_text(held[0]["user"], held[0]["client_id"])
    room = " The team has room, but its members lend one another nothing." if tenant and not tenant.lend else ""
    return f"Let {who} send less, or wait: a hold ends by itself. For more ask for a higher bound.{room}"


def _who(row: Mapping[str, Any]) -> str:
    rest = ", clients without a quota of their own" if row["level"] == MEMBER_LEVEL else ""
    return client_text(row["sensor_user"], row["sensor_client_id"]) + rest


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
        (client_text(one["user"], one["client_id"]), _type(one), age_text(one["throttled_until_ms"] - now_ms))
        for one in held
    )
    is_fresh = are_fresh(reader.root, as_of_ms, now_ms)
    stale = "" if is_fresh else f"These figures are {age_text(now_ms - as_of_ms)} old. "
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
        used_text(row["share"]),
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
