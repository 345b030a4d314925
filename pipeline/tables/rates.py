"""Reads the table `rates`: how near every sensor is to its bound. It is the one source of that for all who ask."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import TableMissing
from pipeline.tables.opening import open_table, reading
from pipeline.tables.port import Condition, TableUnreadable, is_local, parse_commit_note, table_uri
from pipeline.tables.queries import Row, StoredTable, predicates, rows_of
from quota.broker_levels.entries import EntryKey, MemberRate
from quota.tenants import DEMAND_SHARE, Tenant, bounds_of

NEAR: Final = 0.8
"""From this part of its bound on a rate is near it."""

_T = TypeVar("_T")

_FRESH_MS: Final = 10_000
"""How old rates may be where they are for now: the job replaces them each second or two."""
_FRESH_IN_A_STORE_MS: Final = 30_000
"""How old they may be in a store, where the job replaces them every ten seconds."""
_MINUTE_MS: Final = 60_000
"""How old they may be where they are for the last minute."""
_OPENINGS: Final = 3
_COMMITS: Final = 4  # besides a replacement, those of a cleaning and of a new driver
_OF_SENSOR: Final = ("broker_id", "quota_type", "level", "sensor_user", "sensor_client_id", "mode")
_ENTITY: Final = {
    "entity_user": "CASE WHEN level <= 3 THEN sensor_user WHEN level <= 6 THEN '<default>' ELSE '' END",
    "entity_client_id": "CASE WHEN level IN (1, 4, 7) THEN sensor_client_id WHEN level IN (2, 5, 8) THEN '<default>' "
    "ELSE '' END",
}
"""The row of `quotas` that a sensor is under."""
_OF_TENANT: Final = ("tenant", "quota_type", "broker_id", "mode")
_OF_MEMBER: Final = ("sensor_user", "sensor_client_id", "level", "observed", "bound", "own_bound", "held_until_ms")
_ARE_MEMBERS: Final = "clients IS NOT NULL AND tenant IS NOT NULL"


class Rates:
    """The version of `rates` that was the newest when this object was made. All that is read fits together.

    Attributes:
        facts: What the job says of all rows: as_of_ms, batch_id, query_id, time_epoch, active_clients and what all
            clients used per second, as texts. Empty before the first rates.
    """

    def __init__(self, root: str) -> None:
        uri = table_uri(root, "rates")
        table = open_table(uri)
        self._table = StoredTable(table)
        with reading(uri):
            notes = [parse_commit_note(commit.get("userMetadata")) for commit in table.history(_COMMITS)]
        found = (note for note in notes if note is not None and "as_of_ms" in note)
        self.facts: Mapping[str, str] = next(found, {})

    @property
    def as_of_ms(self) -> int:
        """The instant of the rates, in event time; 0 before the first."""
        return int(self.facts.get("as_of_ms", 0))

    def rows(self, sql: str) -> list[Row]:
        """The answer to a query over `source`."""
        return rows_of(self._table.answer(sql))

    def nearest(self, limit: int) -> list[Row]:
        """The sensors with the largest shares, at most so many of each mode, the largest first.

        Each has the `user` and `client_id` of the client that uses the most of it. Equal shares go by these names, then
        by quota type.
        """
        ranked = "SELECT *, row_number() OVER (PARTITION BY mode ORDER BY share DESC) AS rank FROM source"
        return self._with_clients(f"SELECT * FROM ({ranked} WHERE clients IS NOT NULL) WHERE rank <= {limit}")  # noqa: S608 - ours

    def nearest_of_quotas(self) -> dict[tuple[str, str, str], Row]:
        """By user, client-id and quota type of a row of `quotas` its sensor with the largest share, as `nearest`.

        `sensors` is the number of all sensors under that quota.
        """
        entity = ", ".join(f"{sql} AS {name}" for name, sql in _ENTITY.items())
        of_quota = "PARTITION BY entity_user, entity_client_id, quota_type, mode"
        ranked = (
            f"SELECT *, row_number() OVER ({of_quota} ORDER BY share DESC) AS rank, count(*) OVER ({of_quota}) "  # noqa: S608 - ours
            f"AS sensors FROM (SELECT *, {entity} FROM source WHERE clients IS NOT NULL AND level <= 8)"
        )
        rows = self._with_clients(f"SELECT * FROM ({ranked}) WHERE rank = 1")  # noqa: S608 - ours
        return {(row["entity_user"], row["entity_client_id"], row["quota_type"]): row for row in rows}

    def tenants(self, tenants: Sequence[Tenant]) -> list[Row]:
        """What `tenant_sums` has of these tenants."""
        columns = ", ".join((*_OF_TENANT, "clients", "observed", "held_until_ms", "tenant_level"))
        return tenant_sums(self._table.answer(f"SELECT {columns} FROM source WHERE {_ARE_MEMBERS}"), tenants)  # noqa: S608 - ours

    def members(self, tenants: Collection[str], limit: int) -> list[Row]:
        """The members of some tenants, by `_OF_TENANT` at most so many: those that use the most."""
        named = predicates([("tenant", "in", sorted(tenants))])
        ranked = f"row_number() OVER (PARTITION BY {', '.join(_OF_TENANT)} ORDER BY observed DESC) AS place"
        return self.rows(
            f"SELECT * FROM (SELECT {', '.join((*_OF_TENANT, *_OF_MEMBER))}, {ranked} "  # noqa: S608 - quoted by us
            f"FROM source WHERE {_ARE_MEMBERS} AND {named}) WHERE place <= {limit} ORDER BY place"
        )

    def counts(self) -> Row:
        """How many sensors are over their bound (`over_bound`, `over_shadow_bound`), and near it (`near_bound`)."""
        counted = {
            "over_bound": "mode = 'enforce' AND share > 1",
            "near_bound": f"mode = 'enforce' AND share >= {NEAR} AND share <= 1",
            "over_shadow_bound": "mode = 'shadow' AND share > 1",
        }
        sums = ", ".join(
            f"coalesce(sum(CASE WHEN {rule} THEN 1 ELSE 0 END), 0) AS {name}" for name, rule in counted.items()
        )
        return self.rows(f"SELECT {sums} FROM source WHERE clients IS NOT NULL")[0]  # noqa: S608 - ours

    def _with_clients(self, sensors: str) -> list[Row]:
        same = " AND ".join(f"s.{name} = c.{name}" for name in _OF_SENSOR)
        of_sensor = ", ".join((*_OF_SENSOR, "tenant"))
        found = self.rows(
            f'WITH s AS ({sensors}), c AS (SELECT {of_sensor}, "user" AS top_user, '  # noqa: S608 - ours
            f'client_id AS top_client_id, row_number() OVER (PARTITION BY {of_sensor} ORDER BY own_rate DESC, "user", '
            "client_id) AS place FROM source WHERE own_rate IS NOT NULL AND level IS NOT NULL) "
            f"SELECT s.*, c.top_user, c.top_client_id FROM s LEFT JOIN c ON {same} AND c.place = 1 "
            "AND coalesce(s.tenant, '') = coalesce(c.tenant, '')"
        )
        for row in found:
            row["user"], row["client_id"] = row.pop("top_user") or "", row.pop("top_client_id") or ""
        return sorted(found, key=lambda row: (-row["share"], row["user"], row["client_id"], row["quota_type"]))


def members_of(rates: pa.Table, tenants: Sequence[Tenant]) -> pa.Table:
    """The members of tenants, of rows of the table `rates`: sensors in the mode of their tenant.

    A quota in shadow mode has a sensor of its own, next to one that is enforced. So it is no member of an enforced
    tenant: its usage would count twice.
    """
    names, modes = (pa.array([getattr(one, name) for one in tenants], pa.string()) for name in ("name", "mode"))
    mode_of_tenant = modes.take(pc.index_in(rates["tenant"], names))
    return rates.filter(pc.and_(pc.is_valid(rates["clients"]), pc.equal(rates["mode"], mode_of_tenant)))


def tenant_sums(rates: pa.Table, tenants: Sequence[Tenant]) -> list[Row]:
    """What the members of each tenant use together, by `_OF_TENANT`, the fullest first; of one without usage nothing.

    Each row has `used`, the `bound` C, their ratio `share`, `members` (how many have usage), `held` (how many of them
    are held), `tenant_level`, and `is_at_bound`: whether its members together want more.

    * `rates`: Rows of that table, with at least the columns that are asked for here.
    """
    figures = [("observed", "sum"), ("clients", "count"), ("held_until_ms", "count"), ("tenant_level", "max")]
    sums = members_of(rates, tenants).group_by(list(_OF_TENANT)).aggregate(figures)
    names = [*_OF_TENANT, "used", "members", "held", "tenant_level"]
    asked = sums.select([*_OF_TENANT, *("_".join(one) for one in figures)]).rename_columns(names)
    bounds = bounds_of(tenants)
    found = [row for row in rows_of(asked) if (row["tenant"], row["quota_type"]) in bounds]
    for row in found:
        row["bound"] = bounds[row["tenant"], row["quota_type"]]
        row["share"], level = row["used"] / row["bound"], row["tenant_level"]
        # After a peak λ rises slowly: where it is 1 or more it says by itself nothing.
        row["is_at_bound"] = level is not None and (level < 1 or row["share"] >= DEMAND_SHARE)
    return sorted(found, key=lambda row: (-row["share"], row["tenant"], row["quota_type"], row["broker_id"]))


_MEMBERS: Final = (
    "SELECT sensor_user, sensor_client_id, quota_type, bound, own_bound, observed FROM source "
    "WHERE tenant IS NOT NULL AND mode = 'enforce' AND clients IS NOT NULL AND broker_id = '' AND level <= 8"
)


def member_rates(root: str) -> tuple[int, dict[EntryKey, MemberRate]]:
    """The instant of the newest rates, and what they have of members of tenants that have a quota of their own."""

    def read(rates: Rates) -> tuple[int, dict[EntryKey, MemberRate]]:
        keys = ("sensor_user", "sensor_client_id", "quota_type")
        numbers = ("bound", "own_bound", "observed")
        return rates.as_of_ms, {
            EntryKey(*(row[name] for name in keys)): MemberRate(*(row[name] for name in numbers))
            for row in rates.rows(_MEMBERS)
        }

    return read_rates(root, read)


def broker_holds(
    root: str, now_ms: int, user: str | None = None, client_id: str | None = None
) -> dict[tuple[str, str], int]:
    """For how many seconds of the last minute the brokers themselves held clients, the longest first.

    Clients that they held for less than a second are left out. Empty if it is not known: without the table, and when
    its rates are older than a minute.

    * `user`, `client_id`: Only clients with these names; None = any.
    """
    names = (("user", user), ("client_id", client_id))
    wanted: list[Condition] = [(name, "=", value) for name, value in names if value is not None]
    where = predicates([("broker_held_share", ">", 0.0), *wanted])
    sql = (
        'SELECT "user", client_id, max(broker_held_share) AS share FROM source '  # noqa: S608 - quoted by us
        f'WHERE {where} AND "user" IS NOT NULL AND client_id IS NOT NULL GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2'
    )
    with suppress(TableMissing):
        as_of_ms, rows = read_rates(root, lambda rates: (rates.as_of_ms, rates.rows(sql)))
        if as_of_ms > now_ms - _MINUTE_MS:
            held = {(row["user"], row["client_id"]): round(row["share"] * 60) for row in rows}
            return {client: held_seconds for client, held_seconds in held.items() if held_seconds}
    return {}


def broker_hold_text(held_seconds: int) -> str | None:
    """How long the brokers themselves held a client in the last minute, in words; None if they did not."""
    return f"its brokers held it up to {held_seconds} s of the last minute" if held_seconds else None


def held_by_brokers(root: str, user: str, client_id: str | None, now_ms: int) -> str | None:
    """`broker_hold_text` of a client.

    * `client_id`: None = the client of the user that they held longest.
    """
    return broker_hold_text(max(broker_holds(root, now_ms, user, client_id).values(), default=0))


def tenant_levels(root: str, tenants: Collection[str]) -> dict[tuple[str, str, str], float]:
    """λ of some tenants now, by tenant, quota type and mode; of several brokers the least; none at rest."""
    named = predicates([("tenant", "in", sorted(tenants)), ("tenant_level", ">", 0.0)])
    least = "min(tenant_level) AS tenant_level"
    sql = f"SELECT tenant, quota_type, mode, {least} FROM source WHERE {named} GROUP BY 1, 2, 3"  # noqa: S608 - quoted by us
    with suppress(TableMissing):
        rows = read_rates(root, lambda rates: rates.rows(sql))
        return {(row["tenant"], row["quota_type"], row["mode"]): row["tenant_level"] for row in rows}
    return {}


def are_fresh(root: str, as_of_ms: int, now_ms: int) -> bool:
    """Whether rates of an instant still are those of now; `now_ms` by wall clock."""
    return now_ms - as_of_ms <= (_FRESH_MS if is_local(root) else _FRESH_IN_A_STORE_MS)


def read_rates(root: str, read: Callable[[Rates], _T]) -> _T:
    """What a function reads of the newest rates.

    They are replaced every second, and the files of two minutes ago are gone: a reader that loses one opens the table
    again, twice.

    Raises:
        TableMissing: the table does not exist.
        TableUnreadable: the store does not answer, or a file is damaged, or lost at every opening.
    """
    for _ in range(_OPENINGS - 1):
        try:
            return read(Rates(root))
        except TableUnreadable as exc:
            if not exc.is_file_missing:
                raise
    return read(Rates(root))
