"""The range a report is about: what the tables have usage for."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.replay.request import Coverage
from pipeline.replay.usage_batches import Source
from pipeline.tables.port import table_uri

T0_MS = 1_700_000_000_000
SINCE_MS, UNTIL_MS = -60_000, 60_000
Ends = tuple[int, int] | None
"""The times of the first and the last row of a table, after `T0_MS`; None = no such table."""


TIMES = {"usage": ("evaluated_at_ms", "last_event_ms"), "usage_by_second": ("second_start_ms",)}
TIMES["throttle_events"] = ("evaluated_at_ms",)


@pytest.mark.parametrize(
    ("usage", "seconds", "throttles", "source", "since_ms", "until_ms"),
    [
        ((0, 9_000), None, None, "usage", 0, 9_001),
        ((-90_000, 90_000), None, None, "usage", SINCE_MS, UNTIL_MS),
        # The job was still at work when it looked at a throttle: there was no usage until then.
        ((0, 9_000), None, (2_000, 20_000), "usage", 0, 20_001),
        ((0, 9_000), None, (2_000, 5_000), "usage", 0, 9_001),
        (None, (0, 9_000), None, "usage_by_second", 0, 10_000),
        # All usage is rolled up: what is true of it is true of the seconds.
        ((0, 9_500), (0, 9_000), (0, 20_000), "usage_by_second", 0, 20_001),
        # Later usage waits to be rolled up.
        ((0, 10_500), (0, 9_000), (0, 20_000), "usage_by_second", 0, 10_000),
        # Older usage is in the seconds only.
        ((8_000, 9_500), (0, 9_000), None, "usage_by_second", 0, 10_000),
        # Nothing of the range: an empty one, so that the replay says that nothing is kept.
        ((-200_000, -100_000), None, None, "usage", SINCE_MS, SINCE_MS),
        ((100_000, 200_000), None, None, "usage", UNTIL_MS, UNTIL_MS),
        (None, None, None, "usage", SINCE_MS, UNTIL_MS),
    ],
)
def test_a_range_is_cut_down_to_what_there_is_usage_for(
    usage: Ends, seconds: Ends, throttles: Ends, source: Source, since_ms: int, until_ms: int, tmp_path: Path
) -> None:
    for (name, times), ends in zip(TIMES.items(), (usage, seconds, throttles), strict=True):
        if ends is not None:
            rows = pa.table({time: [T0_MS + end for end in ends] for time in times})
            write_deltalake(table_uri(str(tmp_path), name), rows)
    found = Coverage.of(str(tmp_path), source, T0_MS + SINCE_MS, T0_MS + UNTIL_MS)
    assert (found.since_ms - T0_MS, found.until_ms - T0_MS) == (since_ms, until_ms)


@pytest.mark.parametrize("is_one_file", [True, False])
@pytest.mark.parametrize(
    ("until_ms", "covered"),
    [
        # The job stands still; no row of the clock that was ahead says that it was at work.
        (30_000, (3_000, 20_001, 1)),
        (15_000, (3_000, 15_000, 1)),
        # The range has rows of the clock that was ahead.
        (90_000, (3_000, 20_001, 1)),
        (2_500, (0, 2_500, 0)),
    ],
)
def test_a_range_is_of_its_newest_time_epoch(
    until_ms: int, covered: tuple[int, int, int], is_one_file: bool, tmp_path: Path
) -> None:
    uri = table_uri(str(tmp_path), "usage")
    times = {0: (0, 2_000, 50_000, 60_000), 1: (3_000, 10_000, 20_000)}
    epochs = [
        pa.table({"evaluated_at_ms": [T0_MS + ms for ms in of_epoch], "time_epoch": [epoch] * len(of_epoch)})
        for epoch, of_epoch in times.items()
    ]
    for rows in [pa.concat_tables(epochs)] if is_one_file else epochs:
        write_deltalake(uri, rows, mode="append")
    found = Coverage.of(str(tmp_path), "usage", T0_MS, T0_MS + until_ms)
    assert (found.since_ms - T0_MS, found.until_ms - T0_MS, found.time_epoch) == covered
