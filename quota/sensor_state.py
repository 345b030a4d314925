"""Buckets as a table, for storing and restoring. They are the only state that stored usage does not give again."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.decisions import names_of
from quota.entity import QUOTA_TYPES
from quota.errors import InvalidUsage
from quota.key_index import Ids
from quota.names import Seeds
from quota.resolution import Resolution, Side
from quota.sensors import Key, SensorNumbers, TypeSensors
from quota.usage import EntityNames

SCHEMA: Final = pa.schema(
    [
        ("broker_id", pa.string()),
        ("sensor_user", pa.string()),
        ("sensor_client_id", pa.string()),
        ("quota_type", pa.string()),
        ("tokens", pa.float64()),
        ("refilled_at_ms", pa.int64()),
    ]
)
"""Columns of `QuotaEngine.buckets`. The tokens are as of `refilled_at_ms`."""


def sensor_entities(table: pa.Table, has_brokers: bool) -> EntityNames:
    """The sensors of a bucket table as entities. A part that is not a tag is an empty name."""
    columns = {"user": table["sensor_user"], "client_id": table["sensor_client_id"]}
    if has_brokers:
        columns["broker_id"] = table["broker_id"]
    return EntityNames(pa.table(columns), has_brokers)


def buckets_table(
    sensors: dict[Key, TypeSensors],
    numbers: SensorNumbers,
    resolution: Resolution,
    seeds: Seeds,
    has_brokers: bool,
    full_at_ms: int,
) -> pa.Table:
    """The buckets that are not full at an instant under the bounds in force, and all that have no bound now."""
    parts = [SCHEMA.empty_table()]
    for quota_type, name in enumerate(QUOTA_TYPES):
        of_type = sensors.get((Side.ENFORCED, quota_type))
        if of_type is None or of_type.buckets is None:
            continue
        ids = of_type.buckets.charged()
        names = numbers.names(ids)
        hashes = sensor_entities(names, has_brokers).hashed(seeds).read(0, len(ids))
        bound = resolution.bound_of_tags(hashes, Side.ENFORCED, quota_type)
        kept = np.flatnonzero(of_type.buckets.below_burst(ids, bound, full_at_ms))
        tokens, refilled_at_ms = of_type.buckets.stored(ids[kept])
        kind = names_of((name,), np.zeros(len(kept), np.int64))
        columns = names.take(pa.array(kept)).columns
        parts.append(pa.table([*columns, kind, pa.array(tokens), pa.array(refilled_at_ms)], schema=SCHEMA))
    return pa.concat_tables(parts).combine_chunks()


def read_buckets(table: pa.Table) -> list[Ids]:
    """The row numbers of a bucket table per quota type, in the order of `QUOTA_TYPES`.

    Raises:
        InvalidUsage: a column is missing, a value is null, or a quota type is unknown.
    """
    for name in SCHEMA.names:
        if name not in table.column_names:
            raise InvalidUsage(name, "be a column of the buckets", table.column_names)
        if table[name].null_count:
            raise InvalidUsage(name, "not be null", f"{table[name].null_count} nulls")
    types = np.array(table["quota_type"].to_pylist(), np.object_)
    unknown = set(types) - set(QUOTA_TYPES)
    if unknown:
        raise InvalidUsage(name="quota_type", requirement="be one of " + ", ".join(QUOTA_TYPES), got=min(unknown))
    return [np.flatnonzero(types == name) for name in QUOTA_TYPES]


def add_sensors(numbers: SensorNumbers, table: pa.Table, seeds: Seeds, has_brokers: bool) -> Ids:
    """The sensor of each row of a bucket table. One that does not exist is made."""
    names = sensor_entities(table, has_brokers)
    hashes = names.hashed(seeds).read(0, names.num_rows)
    broker, user, client_id = names.take(np.arange(names.num_rows))
    has_user, has_client_id = (pc.not_equal(tag, "").to_numpy(zero_copy_only=False) for tag in (user, client_id))
    return numbers.add(hashes, (broker, user, client_id), has_user, has_client_id)
