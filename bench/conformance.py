"""Plays recorded quota sessions on the engine.

    python -m bench conformance -- [tests/conformance/sessions.jsonl.gz]

The file has 60 sessions with 4 338 requests. They were recorded from the quota classes of Kafka 4.3.1
(`ClientQuotaManager`, `ClientRequestQuotaManager`) on a clock that was set by hand; those of 4.4.0 answer each of them
alike. Other files, `.jsonl` or `.jsonl.gz`, are played in the same way.

A session is one JSON object per line: `quota_type`, `num_samples`, `sample_window_ms`, and `steps` in the order of
time. A step `quota` sets the quota of an entity, or removes it if the bound is null. A step `record` is one request of
`value` bytes or ns, with Kafka's answers: the throttle time and the sensor. Each such step becomes one call of
`QuotaEngine.record` with one row.

Kafka caps the throttle time of request quotas at one sample window. That of byte rates has no cap, but is an int: one
above 2^31 - 1 ms wraps in Kafka 4.3.1, and is 2^31 - 1 in 4.4.0. No other answer differs between the two.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from bench.machine import machine_line
from pipeline.process import run_to_exit
from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot
from quota.throttle_time import ThrottleCaps

MEASURES: Final = {
    "producer_byte_rate": "produced_bytes",
    "consumer_byte_rate": "fetched_bytes",
    "request_percentage": "io_time_ns",
}
KAFKA_CAPS: Final = ThrottleCaps(producer_byte_rate="none", consumer_byte_rate="none")
SHOWN_MISMATCHES: Final = 10
RECORDED_SESSIONS: Final = Path(__file__).parents[1] / "tests" / "conformance" / "sessions.jsonl.gz"

_NUMBERS: Final = ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "last_event_ms")
USAGE: Final = pa.schema(
    [("sample_start_ms", pa.int64()), ("user", pa.string()), ("client_id", pa.string())]
    + [(name, pa.int64()) for name in _NUMBERS]
)


def read_sessions(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def percent_encoded(user: str) -> str:
    """The user as in the tags of Kafka's sensors: every byte except letters, digits, `.`, `-` and `_` is %XX."""
    return quote(user, safe="").replace("~", "%7E")


def as_kafka_ints(throttle_time_ms: int) -> tuple[int, int]:
    """A throttle time as Kafka 4.4.0 and as Kafka 4.3.1 answer it: the two differ where it does not fit into an int."""
    return min(throttle_time_ms, (1 << 31) - 1), (throttle_time_ms + (1 << 31)) % (1 << 32) - (1 << 31)


def replay(session: dict[str, Any]) -> tuple[int, list[str]]:
    """Play one session on an engine of its own. Returns how many records it has, and those answered differently."""
    quota_type = session["quota_type"]
    window_ms = session["sample_window_ms"]
    engine = QuotaEngine(session["num_samples"], window_ms, KAFKA_CAPS)
    bounds: dict[tuple[str, str], float] = {}
    sensors: dict[tuple[str, str], tuple[str, str]] = {}  # of the entities that were seen since the last edit
    edited, records = False, 0
    mismatches: list[str] = []
    for number, step in enumerate(session["steps"], start=1):
        if step["op"] == "quota":
            entity = (step["user"] or "", step["client_id"] or "")
            bounds.pop(entity, None)
            if step["bound"] is not None:
                bounds[entity] = step["bound"]
            edited = True
            continue
        if edited:
            rows = [{"user": user, "client_id": client, quota_type: b} for (user, client), b in bounds.items()]
            engine.load_quotas(QuotaSnapshot.from_rows(rows, number))
            sensors.clear()
            edited = False
        records += 1
        usage = _usage(step, quota_type, window_ms)
        throttled = engine.record(usage, step["t"])["throttle_time_ms"].to_pylist()
        entity = (step["user"], step["client_id"])
        if entity not in sensors:
            sensors[entity] = _sensor(engine, usage, quota_type)
        expected = (step["throttle_time_ms"], *step["sensor"])
        newest, older = ((answer, *sensors[entity]) for answer in as_kafka_ints(sum(throttled)))
        if expected not in (newest, older):
            mismatches.append(f"session {session['seed']}, step {number}: expected {expected}, got {newest}")
    return records, mismatches


def _usage(step: dict[str, Any], quota_type: str, window_ms: int) -> pa.Table:
    row = {
        "sample_start_ms": step["t"] // window_ms * window_ms,
        "user": step["user"],
        "client_id": step["client_id"],
        MEASURES[quota_type]: step["value"],
        "last_event_ms": step["t"],
    }
    return pa.Table.from_pylist([row], USAGE)


def _sensor(engine: QuotaEngine, entity: pa.Table, quota_type: str) -> tuple[str, str]:
    """The sensor of one entity as the engine resolves it, in Kafka's spelling."""
    levels = engine.resolve(entity).to_pylist()
    level = next(level for level in levels if level["quota_type"] == quota_type)
    return percent_encoded(level["sensor_user"]), level["sensor_client_id"]


def main(arguments: list[str] | None = None) -> int:
    """Play a file. Returns 0 if the engine gives every recorded answer, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench conformance", description=main.__doc__)
    about = "sessions, one JSON object per line; may be gzipped"
    parser.add_argument("file", type=Path, nargs="?", default=RECORDED_SESSIONS, help=about)
    path = parser.parse_args(arguments).file
    records, mismatches = 0, 0
    for session in read_sessions(path):
        count, found = replay(session)
        records += count
        for mismatch in found[: max(SHOWN_MISMATCHES - mismatches, 0)]:
            print(mismatch)
        mismatches += len(found)
    print(f"{machine_line()}\n{records} records, {mismatches} mismatches")
    return 1 if mismatches else 0


if __name__ == "__main__":
    run_to_exit(main)
