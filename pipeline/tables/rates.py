"""Reads the table `rates`: how near every sensor is to its bound. It is the one source of that for all who ask."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from pipeline.errors import TableMissing
from pipeline.tables.address import table_uri
from pipeline.tables.opening import open_table, reading
from pipeline.tables.port import TableUnreadable, parse_commit_note
from pipeline.tables.queries import Row, StoredTable, predicates, rows_of

NEAR: Final = 0.8
"""From this part of its bound on a rate is near it."""

_T = TypeVar("_T")

_MINUTE_MS: Final = 60_000
_OPENINGS: Final = 3
_COMMITS: Final = 4  # besides a replacement, those of a cleaning and of a new driver
_OF_SENSOR: Final = ("broker_id", "quota_type", "level", "sensor_user", "sensor_client_id", "mode")
_ENTITY: Final = {
    "entity_user": "CASE WHEN level <= 3 THEN sensor_user WHEN level <= 6 THEN '<default>' ELSE '' END",
    "entity_client_id": "CASE WHEN level IN (1, 4, 7) THEN sensor_client_id WHEN level IN (2, 5, 8) THEN '<default>' "
    "ELSE '' END",
}
"""The row of `quotas` that a sensor is under."""


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
            f"AS sensors FROM (SELECT *, {entity} FROM source WHERE clients IS NOT NULL)"
        )
        rows = self._with_clients(f"SELECT * FROM ({ranked}) WHERE rank = 1")  # noqa: S608 - ours
        return {(row["entity_user"], row["entity_client_id"], row["quota_type"]): row for row in rows}

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
        of_sensor = ", ".join(_OF_SENSOR)
        found = self.rows(
            f'WITH s AS ({sensors}), c AS (SELECT {of_sensor}, "user" AS top_user, '  # noqa: S608 - ours
            f'client_id AS top_client_id, row_number() OVER (PARTITION BY {of_sensor} ORDER BY own_rate DESC, "user", '
            "client_id) AS place FROM source WHERE own_rate IS NOT NULL AND level IS NOT NULL) "
            f"SELECT s.*, c.top_user, c.top_client_id FROM s LEFT JOIN c ON {same} AND c.place = 1"
        )
        for row in found:
            row["user"], row["client_id"] = row.pop("top_user") or "", row.pop("top_client_id") or ""
        return sorted(found, key=lambda row: (-row["share"], row["user"], row["client_id"], row["quota_type"]))


def held_by_brokers(root: str, user: str, client_id: str | None, now_ms: int) -> str | None:
    """How long the brokers themselves held a client in the last minute, in words.

    None if they did not, for a second at least, or if that is not known: without the table, and when its rates are
    older than a minute.

    * `client_id`: None = the client of the user that they held longest.
    """
    where = predicates([("user", "=", user), *([] if client_id is None else [("client_id", "=", client_id)])])
    sql = f"SELECT max(broker_held_share) AS share FROM source WHERE {where}"  # noqa: S608 - quoted by us
    with suppress(TableMissing):
        as_of_ms, (row,) = read_rates(root, lambda rates: (rates.as_of_ms, rates.rows(sql)))
        held_seconds = round((row["share"] or 0.0) * 60)
        if held_seconds and as_of_ms > now_ms - _MINUTE_MS:
            return f"its brokers held it up to {held_seconds} s of the last minute"
    return None


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
