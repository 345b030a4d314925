"""The shapes of throttles and their records, step by step.

    Asked (quota.decisions) ─▶ Publications (who must wait, why, and how long) ─▶ WRITTEN (stored, on the topic)
                                                                                  HELD (running)

Checks go by arrays (`quota.decisions.Claims`, `pipeline.throttle.purgatory`); Arrow tables are for what is published.
A record in one line of text is at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.clock import SHOWN_DIGITS, clock_time, seconds
from pipeline.command_line import command_text
from pipeline.errors import printable
from quota.arrays import Flags, Floats, Ints
from quota.decisions import Claims
from quota.entity import QUOTA_TYPES, LevelKind
from quota.throttle_time import throttle_time_of
from quota.units import against_bound, rate_text, rate_unit
from quota.usage import Pair, names_of, names_where
from schemas.names import ClientKey
from schemas.throttle_record import BATCH_CAUSES, SENSOR, Target, ThrottleRecord, verb_of

if TYPE_CHECKING:  # pyarrow's classes are generic to its stubs only
    from typing import TypeAlias

    Values: TypeAlias = pa.ChunkedArray[Any] | pa.Array[Any]

NO_BOUND: Final = np.inf
"""Stands for "no bound" in an array of bounds."""
NO_LEVEL: Final = 0
"""Stands for "not known" and "no quota" in an array of levels."""

CLIENTS: Final = pa.schema([(name, pa.string()) for name in ClientKey._fields])
"""Who: the broker in broker scope, else ""; without a client-id it is a user, with all client-ids but some."""
WRITTEN: Final = pa.schema(
    [
        *CLIENTS,
        ("except_client_ids", pa.list_(pa.string())),
        *((name, pa.string()) for name in ("action", "cause")),
        ("throttle_time_ms", pa.int64()),
        *((name, pa.string()) for name in ("quota_type", "sensor_user", "sensor_client_id")),
        *((name, pa.float64()) for name in ("observed", "bound")),
        ("window_ms", pa.int64()),
        ("tokens", pa.float64()),
        *((name, pa.int64()) for name in ("owed_ms", "level")),
        ("tenant", pa.string()),
        ("own_bound", pa.float64()),
        ("decision_id", pa.string()),
        *((name, pa.int64()) for name in ("due_ms", "lateness_ms")),
        *((name, pa.int64()) for name in ("publish_seq", "throttled_until_ms")),
    ]
)
"""Records as they are written; `schemas.throttle_record.ThrottleEventRow` says what most columns mean.

`throttle_time_ms` counts from the moment it is written; `level` is 1-8, null where it is not known; `due_ms` is steady
time.
"""
HELD: Final = pa.schema(
    [
        *CLIENTS,
        *(
            WRITTEN.field(name)
            for name in ("except_client_ids", "quota_type", "bound", "level", "decision_id", "due_ms")
        ),
        ("end_ms", pa.int64()),
    ]
)
"""Running throttles: of the last record published for each the quota type, bound (null: none) and level
(null: not known), the decision that began it, its end on the steady clock, and when its check or its end is due there.
"""


def table_of(schema: pa.Schema, num_rows: int, columns: "dict[str, Values | str | int]") -> pa.Table:
    """A table of a schema.

    * `columns`: Of each its values, or one value for all rows. Those that are missing are null; others are left out.
    """
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            values = pa.nulls(num_rows, field.type)
        elif isinstance(values, str | int):
            values = pa.repeat(pa.scalar(values, field.type), num_rows)
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=schema)


def columns_of(table: pa.Table, schema: pa.Schema) -> "dict[str, Values | str | int]":
    """The columns that a table and a schema share, as `table_of` takes them."""
    return {name: table[name] for name in table.column_names if name in schema.names}


def int64s(table: pa.Table, name: str) -> Ints:
    """A column without nulls."""
    values: Ints = table[name].to_numpy()
    return values


def own_bounds_of(table: pa.Table) -> Floats:
    """T of each row: `own_bound` of a member of a tenant, else `bound`; `NO_BOUND` for null."""
    bounds = pc.coalesce(table["own_bound"], table["bound"]).to_numpy()  # null is NaN
    return np.where(np.isnan(bounds), NO_BOUND, bounds)


def levels_of(table: pa.Table) -> Ints:
    """The column `level`, `NO_LEVEL` for null."""
    levels: Ints = np.nan_to_num(table["level"].to_numpy(), nan=NO_LEVEL).astype(np.int64)  # null is NaN
    return levels


def types_of(table: pa.Table) -> Ints:
    """The column `quota_type` as positions in `QUOTA_TYPES`."""
    types: Ints = pc.index_in(table["quota_type"], value_set=pa.array(QUOTA_TYPES)).to_numpy().astype(np.int64)
    return types


def kinds_of(has_user: Flags, has_client_id: Flags) -> Ints:
    """The `LevelKind` of sensors, by their tags."""
    return np.where(has_user & has_client_id, LevelKind.USER_CLIENT, has_user * LevelKind.USER + has_client_id)


def rows_of_types(answers: pa.Table, quota_types: Ints) -> pa.Table:
    """Pick the row of one quota type for each of n clients, from an answer of `evaluate` or `resolve`.

    * `quota_types`: Positions in `QUOTA_TYPES`, int64[n].
    """
    return answers.take(pa.array(np.arange(len(quota_types)) * len(QUOTA_TYPES) + quota_types))


@dataclass(frozen=True, slots=True)
class Publications:
    """n records that are about to be written, in columns.

    Attributes:
        keys: Of each target: `QuotaEngine.keys_of`.
        clients: Who they are, of `CLIENTS`.
        excepted: The client-ids that each does not hold, a tuple; None for a client.
        claims: Why they must wait, or no longer.
        holds: A throttle; else a release.
        throttle_time_ms: Length of the slice; 0 for a release.
        decision_ids: The decisions that began the throttles, as texts.
        about: The other columns of `WRITTEN`; those that are missing are null.
    """

    keys: Pair
    clients: pa.Table
    excepted: NDArray[np.object_]
    claims: Claims
    holds: Flags
    throttle_time_ms: Ints
    decision_ids: NDArray[np.object_]
    about: "dict[str, Values | str | int]"

    def __len__(self) -> int:
        return len(self.holds)

    def written(self, first_seq: int, wall_ms: int | Ints) -> pa.Table:
        """As rows of `WRITTEN`; the ends count from this instant on the wall clock, or each from its own."""
        columns: dict[str, Values | str | int] = {
            **columns_of(self.clients, CLIENTS),
            "except_client_ids": lists_of(self.excepted),
            "action": pc.if_else(pa.array(self.holds), "throttle", "release"),
            "throttle_time_ms": pa.array(self.throttle_time_ms),
            **_reasons_of(self.clients, self.claims),
            "decision_id": pa.array(self.decision_ids.tolist(), pa.string()),
            "publish_seq": pa.array(np.arange(first_seq, first_seq + len(self))),
            "throttled_until_ms": pa.array(wall_ms + self.throttle_time_ms),
            **self.about,
        }
        return table_of(WRITTEN, len(self), columns)


def holds_users(excepted: NDArray[np.object_]) -> Flags:
    """Which targets are users: those that have exceptions, also if there are none."""
    return np.fromiter((one is not None for one in excepted), np.bool_, len(excepted))


def lists_of(excepted: NDArray[np.object_]) -> "pa.Array[Any]":
    """Exceptions, tuples or None, as a column."""
    return pa.array(excepted.tolist(), pa.list_(pa.string()))


def _reasons_of(clients: pa.Table, claims: Claims) -> "dict[str, Values | str | int]":
    tenant = pa.array(claims.tenant, pa.string())
    return {
        "quota_type": names_of(QUOTA_TYPES, claims.quota_type),
        "sensor_user": names_where(claims.has_user, clients["user"]),
        "sensor_client_id": names_where(claims.has_client_id, clients["client_id"]),
        "observed": pa.array(claims.observed),
        "bound": pa.array(claims.bound, mask=np.isinf(claims.bound)),
        "window_ms": pa.array(claims.window_ms),
        "tokens": pa.array(claims.tokens, mask=np.isnan(claims.tokens)),
        "owed_ms": pa.array(claims.owed_ms),
        "level": pa.array(claims.level, mask=claims.level == NO_LEVEL),
        "tenant": tenant,
        "own_bound": pa.array(claims.own_bound, mask=tenant.is_null().to_numpy(zero_copy_only=False)),
    }


# A throttle in one line, for logs and the demo: as the job writes it, and as the topic has it.


Row = Mapping[str, Any]
"""A record with the columns of `WRITTEN`."""


def line_of(row: Row, quota_version: int) -> str:
    """What happened, to whom, why and until when.

    Instants are UTC; O, T and a debt share one unit; seconds have one decimal. A bucket's debt is given where O ≤ T,
    and what is still owed where a client is released: they are why it is held, or the little that it is let go with.
    """
    who, held_ms, owed_ms = str(Target.of(row)), row["throttle_time_ms"], row["owed_ms"]
    if row["broker_id"]:
        who += f"@{row['broker_id']}"
    figures = f"{printable(who)} {row['quota_type']} {_rates(row)}"
    if row["action"] == "release":
        rest = f", owes {owed_ms} ms" if owed_ms else ""
        return f"release  {figures} ({row['cause']}{rest})"
    is_new = row["cause"] in BATCH_CAUSES and (row["bound"] is None or row["observed"] > row["bound"])
    asked_ms = throttle_time_of(row) if is_new else owed_ms
    asked = f"{'X' if is_new else 'owes'} {seconds(asked_ms)}"
    if is_new and held_ms > asked_ms:  # its bucket owes more
        asked_ms = owed_ms
        asked += f", owes {seconds(asked_ms)}"
    if held_ms < asked_ms:
        asked += f", capped {seconds(held_ms)}"
    verb = verb_of(row["action"], row["cause"])
    level = "" if row["level"] is None else f"level {row['level']}, "
    return (
        f"{verb:<8} {figures} ({level}quotas v{quota_version}) "
        f"W {seconds(row['window_ms'])} {asked}, until {clock_time(row['throttled_until_ms'])}"
    )


def line_with_command(row: Row, quota_version: int) -> str:
    """The line, and the command that shows more of it; only where the record is in the tables."""
    explain = command_text("throttles", "explain", row["decision_id"][:SHOWN_DIGITS])
    return f"{line_of(row, quota_version)} · {explain}"


def line_of_record(record: ThrottleRecord) -> str:
    """A record of the throttle topic as the job's own line, without its level."""
    row = {**dict(record), **dict(zip(SENSOR, record.sensor, strict=True)), "level": None}
    return line_with_command(row, record.quota_version)


def _rates(row: Row) -> str:
    quota_type, observed, bound = row["quota_type"], row["observed"], row["bound"]
    if bound is None:
        return f"O {rate_text(quota_type, observed)}, no bound"
    rates = against_bound(quota_type, observed, bound)
    debt = -min(row["tokens"] or 0.0, 0.0)
    if observed > bound or not debt or not row["owed_ms"]:
        return rates
    unit, factor = rate_unit(quota_type, bound)
    amount = "%·s" if unit == "%" else unit.removesuffix("/s")
    return f"{rates}, debt {debt / factor:.1f} {amount}"
