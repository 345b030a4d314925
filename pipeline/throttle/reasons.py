"""From the engine's answers to the reasons why clients must wait, by columns.

The engine answers with three rows per client, one for each quota type; of these one is taken.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.throttle.publications import (
    CLIENTS,
    NO_LEVEL,
    REASONS,
    Ints,
    bounds_of,
    columns_of,
    int64s,
    levels_of,
    table_of,
    types_of,
)
from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.owed import type_that_owes_most
from schemas.names import ClientKey

_SENSORS: Final = pa.schema([REASONS.field(name) for name in ("sensor_user", "sensor_client_id", "level")])


def entities_of(keys: Sequence[ClientKey]) -> pa.Table:
    """Clients as the engine's `entities` table: broker_id, user, client_id, all strings, in the order given."""
    names = zip(*keys, strict=True) if keys else ((), (), ())
    return pa.table(
        {column: pa.array(values, pa.string()) for column, values in zip(CLIENTS.names, names, strict=True)}
    )


def rows_of_types(answers: pa.Table, quota_types: Ints) -> pa.Table:
    """Of an answer of `evaluate` or `resolve` the row of one quota type per client.

    Args:
        answers: Three rows for each of n clients.
        quota_types: Positions in `QUOTA_TYPES`, int64[n].
    """
    return answers.take(pa.array(np.arange(len(quota_types)) * len(QUOTA_TYPES) + quota_types))


def reasons_of(engine: QuotaEngine, throttles: pa.Table, evaluated_at_ms: int) -> pa.Table:
    """What clients owe now, by the quota type that asks for the longest wait; of `REASONS`, row for row.

    Where several types ask for the same wait (also: for none), it is the type that the throttle is held for. The sensor
    and its level are those that were published last, unless another type asks or the bound has changed.

    Args:
        engine: Under the quotas in force.
        throttles: Of `HELD`.
        evaluated_at_ms: The instant.
    """
    owed = engine.evaluate(throttles.select(CLIENTS.names), evaluated_at_ms=evaluated_at_ms)
    known_types = types_of(throttles)
    owed_ms = int64s(owed, "owed_ms").reshape(-1, len(QUOTA_TYPES)).T
    types = type_that_owes_most(owed_ms, known_types)
    claims = rows_of_types(owed, types)
    is_sure = (types == known_types) & (bounds_of(claims) == bounds_of(throttles)) & (levels_of(throttles) != NO_LEVEL)
    sensors = throttles.select(_SENSORS.names)
    if not is_sure.all():
        unsure = np.flatnonzero(~is_sure)
        resolved = engine.resolve(throttles.select(CLIENTS.names).take(pa.array(unsure)))
        found = rows_of_types(resolved, types[unsure]).select(_SENSORS.names)
        # Those that are sure, then those that were resolved, back in the order of the clients.
        order = np.argsort(np.concatenate((np.flatnonzero(is_sure), unsure)))
        sensors = pa.concat_tables([sensors.filter(pa.array(is_sure)), found]).take(pa.array(order))
    return table_of(REASONS, len(types), columns_of(claims, REASONS) | columns_of(sensors, _SENSORS))
