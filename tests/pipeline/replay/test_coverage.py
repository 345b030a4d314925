"""The range a report is about: what the tables have usage for."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.replay.request import Coverage
from pipeline.replay.usage_batches import Source
from pipeline.tables.port import table_uri

T0_MS = 1_700_000_000_000
SINCE_MS, UNTIL_MS = -60_000, 60_000


@dataclass
class Kept:
    """The times of the first and the last row of each table, after `T0_MS`; None = no such table."""

    usage: tuple[int, int] | None = None
    seconds: tuple[int, int] | None = None
    throttles: tuple[int, int] | None = None

    def write(self, root: str) -> None:
        columns = {
            "usage": (self.usage, ("evaluated_at_ms", "last_event_ms")),
            "usage_by_second": (self.seconds, ("second_start_ms",)),
            "throttle_events": (self.throttles, ("evaluated_at_ms",)),
        }
        for name, (ends, times) in columns.items():
            if ends is not None:
                rows = pa.table({time: [T0_MS + end for end in ends] for time in times})
                write_deltalake(table_uri(root, name), rows)


@pytest.mark.parametrize(
    ("kept", "source", "since_ms", "until_ms"),
    [
        (Kept(usage=(0, 9_000)), "usage", 0, 9_001),
        (Kept(usage=(-90_000, 90_000)), "usage", SINCE_MS, UNTIL_MS),
        # The job was still at work when it looked at a throttle: there was no usage until then.
        (Kept(usage=(0, 9_000), throttles=(2_000, 20_000)), "usage", 0, 20_001),
        (Kept(usage=(0, 9_000), throttles=(2_000, 5_000)), "usage", 0, 9_001),
        (Kept(seconds=(0, 9_000)), "usage_by_second", 0, 10_000),
        # All usage is rolled up: what is true of it is true of the seconds.
        (Kept(usage=(0, 9_500), seconds=(0, 9_000), throttles=(0, 20_000)), "usage_by_second", 0, 20_001),
        # Later usage waits to be rolled up.
        (Kept(usage=(0, 10_500), seconds=(0, 9_000), throttles=(0, 20_000)), "usage_by_second", 0, 10_000),
        # Older usage is in the seconds only.
        (Kept(usage=(8_000, 9_500), seconds=(0, 9_000)), "usage_by_second", 0, 10_000),
        # Nothing of the range: an empty one, so that the replay says that nothing is kept.
        (Kept(usage=(-200_000, -100_000)), "usage", SINCE_MS, SINCE_MS),
        (Kept(usage=(100_000, 200_000)), "usage", UNTIL_MS, UNTIL_MS),
        (Kept(), "usage", SINCE_MS, UNTIL_MS),
    ],
)
def test_a_range_is_cut_down_to_what_there_is_usage_for(
    kept: Kept, source: Source, since_ms: int, until_ms: int, tmp_path: Path
) -> None:
    kept.write(str(tmp_path))
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
