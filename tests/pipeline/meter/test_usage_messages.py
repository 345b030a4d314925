"""How usage becomes messages."""

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.meter.usage_messages import (
    COLUMN_MEASURES,
    MAX_MESSAGE_BYTES,
    client_columns,
    messages_of,
    new_client,
)
from schemas.usage import UsageEvent
from tests.pipeline.meter.metered_broker import events_of

NAMES = [(user, client_id) for user in ("alice", 'b"\n\\é😀', "x" * 32_000) for client_id in ("", "c")]
CLIENTS = [new_client(user, client_id, "7") for user, client_id in NAMES]
AMOUNTS = st.one_of(st.none(), st.integers(1, 2**40))
ROWS = st.lists(st.tuples(st.integers(0, len(CLIENTS) - 1), st.integers(0, 2**62), AMOUNTS, AMOUNTS, AMOUNTS))

Row = tuple[int, int, int | None, int | None, int | None]


def usage_of(rows: Sequence[Row]) -> pa.Table:
    places, times_ms, *amounts = zip(*rows, strict=True)
    usage = client_columns(CLIENTS).take(list(places)).append_column("event_time_ms", pa.array(times_ms, pa.int64()))
    for name, values in zip(COLUMN_MEASURES, amounts, strict=True):
        usage = usage.append_column(name, pa.array(values, pa.int64()))
    return usage


@given(ROWS.filter(bool))
def test_each_row_is_one_event_and_those_of_a_client_keep_their_order_in_one_partition(rows: Sequence[Row]) -> None:
    found: dict[tuple[str, str], list[tuple[int, UsageEvent]]] = defaultdict(list)
    for partition, value in messages_of(usage_of(rows), 3):
        for event in map(UsageEvent.model_validate, events_of(value)):
            found[event.user, event.client_id].append((partition, event))
    for at, (user, client_id) in enumerate(NAMES):
        partitions = {partition for partition, _ in found[user, client_id]}
        assert partitions <= {CLIENTS[at].number % 3}
        assert [event for _, event in found[user, client_id]] == [
            UsageEvent(
                event_time_ms=row[1], user=user, client_id=client_id, broker_id="7", request_count=0,
                produced_bytes=row[2], fetched_bytes=row[3], io_time_ns=row[4],
            )
            for row in rows
            if row[0] == at
        ]  # fmt: skip


def test_columns_become_messages_that_are_not_too_large() -> None:
    small, large = ([(at, 5, 1, None, None)] * count for at, count in ((0, 2_500), (4, 50)))
    assert [len(message.value) <= MAX_MESSAGE_BYTES for message in messages_of(usage_of(large), 3)] == [True] * 4
    assert len(messages_of(usage_of(small), 3)) == 3
