"""A table after a day of commits and upkeep, compared with a new one: opening, appending, reading back.

It writes the log of a job that has committed twice per second for 28 hours, one small file per commit. Upkeep leaves
the log as it does again and again: with a checkpoint, and without log entries older than their retention. Then it does
the same operations on both tables.

    python -m bench.old_table [--commits 200000] [--rounds 9]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from bench.machine import machine_line
from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.maintenance import clean
from schemas.arrow import conform
from schemas.sensor_state_row import SensorStateRow

_TABLE: Final = "sensor_state"
_COMMITS_BETWEEN_CLEANINGS: Final = 2_400
_NOW_MS: Final = 1_700_000_000_000


def main() -> None:
    """Make both tables and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    print(machine_line())
    with tempfile.TemporaryDirectory() as folder:
        fresh, old = (_made(Path(folder) / name) for name in ("fresh", "old"))
        began = time.perf_counter()
        _age(Path(old), arguments.commits)
        entries = sum(1 for _ in Path(old, "_delta_log").iterdir())
        seconds = time.perf_counter() - began
        print(f"{arguments.commits} commits and their upkeep done in {seconds:.0f} s; {entries} log files")
        print(f"{'ms, median of ' + str(arguments.rounds):<34}{'fresh':>10}{'old':>10}")
        for name, ask in (
            ("open", _open),
            ("open, raise the epoch, append", _append),
            ("read the newest facts", _facts),
        ):
            times_ms = [statistics.median(_timed(ask, uri) for _ in range(arguments.rounds)) for uri in (fresh, old)]
            print(f"{name:<34}" + "".join(f"{time_ms:>10.1f}" for time_ms in times_ms))


def _made(root: Path) -> str:
    create_missing(str(root), [TABLES[_TABLE]])
    uri = table_uri(str(root), _TABLE)
    writer = DeltaRsWriter(uri, "job")
    writer.raise_epoch(1)
    writer.append(_rows(), {"query": 0}, {"batch": "0"})
    return uri


def _age(table: Path, commits: int) -> None:
    """Append log entries that have only the job's transactions, hour by hour, with times in the past."""
    log = table / "_delta_log"
    first = DeltaTable(table).version() + 1
    now_seconds = time.time()
    # Clean-up keeps everything from the first young entry on. So the entries that created the table must be old too.
    for entry in log.iterdir():
        os.utime(entry, (now_seconds - commits / 2,) * 2)
    for first_of_round in range(0, commits, _COMMITS_BETWEEN_CLEANINGS):
        for number in range(first_of_round, min(first_of_round + _COMMITS_BETWEEN_CLEANINGS, commits)):
            age_seconds = (commits - number) / 2
            stamp_ms = round((now_seconds - age_seconds) * 1000)
            entry = log / f"{first + number:020}.json"
            entry.write_text(
                f'{{"commitInfo":{{"timestamp":{stamp_ms},"operation":"WRITE","operationParameters":{{}}}}}}\n'
                f'{{"txn":{{"appId":"query","version":{number + 1},"lastUpdated":{stamp_ms}}}}}\n'
            )
            os.utime(entry, (now_seconds - age_seconds,) * 2)
        clean(str(table))
        # Clean-up keeps the log back to a checkpoint that is itself old.
        for checkpoint in log.glob("*.checkpoint.parquet"):
            if checkpoint.stat().st_mtime > now_seconds:
                os.utime(checkpoint, (now_seconds - age_seconds,) * 2)


def _rows() -> pa.Table:
    return conform(
        pa.table({"tokens": [1.0]}),
        SensorStateRow,
        cluster="c",
        query_id="q",
        batch_id=0,
        evaluated_at_ms=_NOW_MS,
        broker_id="",
        sensor_user="u",
        sensor_client_id="",
        quota_type="producer_byte_rate",
        refilled_at_ms=_NOW_MS,
    )


def _open(uri: str) -> object:
    return DeltaTable(uri).version()


def _append(uri: str) -> object:
    writer = DeltaRsWriter(uri, "job")
    writer.raise_epoch((writer.recorded_version("job") or 0) + 1)
    return writer.append(_rows(), {"query": (writer.recorded_version("query") or 0) + 1}, {"batch": "1"})


def _facts(uri: str) -> object:
    return DeltaRsWriter(uri, "job").commit_metadata(20)


def _timed(ask: Callable[[str], object], uri: str) -> float:
    began = time.perf_counter()
    ask(uri)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
