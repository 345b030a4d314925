"""The dashboard's API over 10 000 clients and a week of minutes: the time of each view, and the server's memory.

The tables are made first, and get a round of upkeep. The server is `kquota dashboard` in a process of its own;
meanwhile another process runs a micro-batch every half second, and roll-ups and upkeep every minute, as the job does.
Requests come one after the other.

    python -m bench.views [--clients 10000] [--days 7] [--requests 40]

Targets: p95 1 s for every view, 400 MB of memory at most.
"""

import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from pydantic import BaseModel

from bench.machine import arguments, cpu_seconds, memory_of
from bench.pages import line
from bench.stage import answer_ms, await_ready, dashboard
from pipeline.job.job_run import Upkeep
from pipeline.settings.model import EngineSettings, Settings, StreamSettings
from pipeline.stream.job_tables import RollUps
from pipeline.tables.address import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit
from pipeline.tables.upkeep import sort_day
from schemas.arrow import conform
from schemas.decisions import DecisionRow
from schemas.rows import BatchRow
from schemas.throttle_record import ThrottleByMinuteRow, ThrottleEventRow
from schemas.usage import UsageByMinuteRow, UsageRow
from tests.faults.hand_job import HandJob

USERS: Final = 500
TRIGGER_MS: Final = 500
HELD: Final = 30
"""So many clients send more than they may."""
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
_PART_MS: Final = 7_200_000
_BOUND: Final = 1e6
_USAGE_KEPT_MS: Final = 7_200_000
_LIVED_STEPS: Final = 240
_UNMERGED_MINUTES: Final = 150


_OLD: Final = {"query_id": "old", "quota_version": 1}
_HELD: Final = {"owner": "owner-1", "held_ms": 50_000, "throttle_count": 1, "renewal_count": 5}
_BATCH: Final = {
    **dict.fromkeys(("start_offsets", "end_offsets"), '{"usage":{"0":1234567}}'),
    **dict.fromkeys(("good_count", "late_count", "clamped_count", "ignored_count", "dead_count"), 0),
    "engine_settings": "{}",
}
_DECIDED: Final = {
    "quota_type": "producer_byte_rate", "mode": "enforce", "sensor_user": "", "sensor_client_id": "", "level": 1,
    "observed": _BOUND * 3, "bound": _BOUND, "batch_id": 1, "window_ms": 10_000, "raw_throttle_time_ms": 20_000,
    "throttle_time_ms": 10_000, "max_throttle_time_ms": 10_000, "applied": True,
}  # fmt: skip
_PUBLISHED: Final = {"action": "throttle", "cause": "renewed", "schema_version": 1, "owed_ms": 10_000}


class Week:
    """The tables, and the job that goes on to write them."""

    def __init__(self, folder: Path, clients: int, days: int, now_ms: int) -> None:
        self.job = HandJob(folder, {"producer_byte_rate": _BOUND})
        self.job.settings = Settings(
            job="hand",
            cluster="week",
            kafka=self.job.settings.kafka,
            tables=self.job.settings.tables,
            engine=EngineSettings(),
            stream=StreamSettings(max_decision_age_ms=60_000),
        )
        self.root = self.job.settings.tables.root
        self._random = np.random.default_rng(7)
        self._clients = clients
        self._days = days
        self._users = np.array([f"team-{number % USERS:03}" for number in range(clients)])
        self._client_ids = np.array([f"service-{number:05}" for number in range(clients)])
        self._seq = -1
        self._turn = 0
        self._begin_ms = now_ms // _MINUTE_MS * _MINUTE_MS - 2 * _MINUTE_MS
        rows = [
            QuotaChange(f"team-{number:03}", "", {"producer_byte_rate": _BOUND * 20, "owner": f"owner-{number % 40}"})
            for number in range(USERS)
        ]
        rows += [QuotaChange(*self.client(number), {"producer_byte_rate": _BOUND}) for number in range(HELD)]
        self.job.quota_table.alter(rows, EditAudit("bench", "", "", "bench"))
        self.job.clock.set_wall(self._begin_ms)
        self.job.clock.steady_ms = self._begin_ms
        self.job.start()
        self._write_days()
        self._write_usage()
        self._write_last_minutes()
        for _ in range(_LIVED_STEPS):
            self.step(self.job.clock.wall_ms + TRIGGER_MS)
        self._roll_ups = RollUps(self.job.settings.tables, self.job.tables, self.job.quota_table)
        self._roll_ups.step()

    @property
    def rows(self) -> int:
        """Of `usage_by_minute`."""
        return self._days * 1_440 * (self._clients // 10)

    def client(self, number: int) -> tuple[str, str]:
        """User and client-id; the first `HELD` ones are held all the time."""
        return str(self._users[number]), str(self._client_ids[number])

    def step(self, now_ms: int) -> None:
        a_batch = self._clients // 10 * TRIGGER_MS // 1_000
        others = (self._turn * a_batch + np.arange(a_batch)) % self._clients
        self._turn += 1
        events = [
            {
                "event_time_ms": now_ms - 100,
                "user": str(self._users[number]),
                "client_id": str(self._client_ids[number]),
                "broker_id": "1",
                "produced_bytes": int(_BOUND * 3) if number < HELD else 2_000 + int(number),
                "fetched_bytes": 1_000,
                "io_time_ns": 200_000,
                "request_count": 3,
            }
            for number in {*range(HELD), *others.tolist()}
        ]
        self.job.send(json.dumps(events).encode())
        self.job.clock.set_wall(now_ms)
        self.job.clock.steady_ms = now_ms
        self.job.step()

    def keep_up(self) -> None:
        """What the job does each minute: what is rolled up, and a round of upkeep."""
        self._roll_ups.step()
        Upkeep(self.job.settings.tables, self.job.clock, lambda: 0).round()

    def sort_days(self) -> None:
        """As the rounds of each day did."""
        for name in ("usage_by_minute", "throttle_by_minute"):
            while sort_day(table_uri(self.root, name), many_files=1) is not None:
                pass

    def _write_days(self) -> None:
        merged_until_ms = self._begin_ms - _UNMERGED_MINUTES * _MINUTE_MS
        for day_ms in range(self._begin_ms - self._days * _DAY_MS, self._begin_ms, _DAY_MS):
            until_ms = day_ms + _DAY_MS
            # In parts, as upkeep sorts no day that is one file.
            for part_ms in range(day_ms, min(until_ms, merged_until_ms), _PART_MS):
                minutes = np.arange(part_ms, min(part_ms + _PART_MS, until_ms, merged_until_ms), _MINUTE_MS)
                self._append("usage_by_minute", self._used(minutes), UsageByMinuteRow)
            self._append_held(day_ms, min(until_ms, merged_until_ms))
            self._append("batches", self._batches(day_ms, until_ms), BatchRow, **_BATCH, **_OLD)
            self._append("decisions", self._decided(day_ms, until_ms), DecisionRow, **_DECIDED, **_OLD)
            events = self._published(day_ms, until_ms)
            self._append("throttle_events", events, ThrottleEventRow, **_DECIDED, **_PUBLISHED, **_OLD)

    def _write_last_minutes(self) -> None:
        for minute_ms in range(self._begin_ms - _UNMERGED_MINUTES * _MINUTE_MS, self._begin_ms, _MINUTE_MS):
            self._append("usage_by_minute", self._used(np.array([minute_ms])), UsageByMinuteRow)
            self._append_held(minute_ms, minute_ms + _MINUTE_MS)

    def _write_usage(self) -> None:
        for begin_ms in range(self._begin_ms - _USAGE_KEPT_MS, self._begin_ms, 10 * _MINUTE_MS):
            seconds = np.arange(begin_ms, begin_ms + 10 * _MINUTE_MS, 1_000)
            rows = self._used(seconds, "sample_start_ms")
            rows = rows.append_column("evaluated_at_ms", pa.array(rows["sample_start_ms"].to_numpy() + 900))
            self._append("usage", rows, UsageRow, batch_id=0, **_OLD)

    def _used(self, starts_ms: "np.ndarray[Any, Any]", name: str = "minute_start_ms") -> pa.Table:
        active = np.concatenate([
            self._random.choice(self._clients, self._clients // 10, replace=False) for _ in starts_ms
        ])  # fmt: skip
        starts = np.repeat(starts_ms, self._clients // 10)
        amounts = self._random.integers(1_000, 1_000_000, len(active))
        return pa.table({
            name: starts, "last_event_ms": starts + 900, **self._names(active), "produced_bytes": amounts,
            "fetched_bytes": amounts // 3, "io_time_ns": amounts * 100, "network_time_ns": amounts * 20,
            "request_count": amounts % 1_000,
        })  # fmt: skip

    def _append_held(self, begin_ms: int, until_ms: int) -> None:
        minutes, held = _each(begin_ms, until_ms, _MINUTE_MS)
        rows = pa.table({"minute_start_ms": minutes, **self._names(held)})
        self._append("throttle_by_minute", rows, ThrottleByMinuteRow, **_HELD, quota_type="producer_byte_rate")

    def _batches(self, begin_ms: int, until_ms: int) -> pa.Table:
        at_ms = np.arange(begin_ms, until_ms, TRIGGER_MS)
        return pa.table({"batch_id": at_ms // TRIGGER_MS, "evaluated_at_ms": at_ms, "processed_at_ms": at_ms + 200})

    def _decided(self, begin_ms: int, until_ms: int) -> pa.Table:
        instants, held = _each(begin_ms, until_ms, _MINUTE_MS // 6)
        names = self._names(held)
        ids = np.char.add(np.char.add("d", instants.astype(str)), names["client_id"])
        return pa.table({**names, "evaluated_at_ms": instants, "decision_id": ids})

    def _published(self, begin_ms: int, until_ms: int) -> pa.Table:
        """A renewal of each held client every 10 s. Before the job's own records, which begin at 0."""
        decided = self._decided(begin_ms, until_ms)
        before = -int((self._begin_ms - begin_ms) // _MINUTE_MS * 6 * HELD) - 1
        seqs, until = np.arange(before, before + decided.num_rows), decided["evaluated_at_ms"].to_numpy() + 10_000
        numbers = {"publish_seq": pa.array(seqs), "throttled_until_ms": pa.array(until)}
        return pa.table({**dict(zip(decided.column_names, decided.columns, strict=True)), **numbers})

    def _names(self, numbers: "np.ndarray[Any, Any]") -> dict[str, Any]:
        return {
            "user": self._users[numbers],
            "client_id": self._client_ids[numbers],
            "broker_id": pa.repeat("1", len(numbers)),
        }

    def _append(self, name: str, rows: pa.Table, model: type[BaseModel], **constants: Any) -> None:
        uri = table_uri(self.root, name)
        of_model = {column: value for column, value in constants.items() if column in model.model_fields}
        write_deltalake(uri, conform(rows, model, cluster="week", **of_model), mode="append")


def _each(begin_ms: int, until_ms: int, step_ms: int) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """Instants, and the numbers of the clients that are held at each of them."""
    instants = np.arange(begin_ms, until_ms, step_ms)
    return np.repeat(instants, HELD), np.tile(np.arange(HELD), len(instants))


_UPKEEP_SECONDS: Final = 60.0
_CHOSEN: Final = random.Random(1)


def main() -> None:
    asked = arguments(__doc__, clients=10_000, days=7, requests=40)
    with (
        tempfile.TemporaryDirectory() as folder,
        _going_on(Path(folder), asked.clients, asked.days) as root,
        dashboard(root) as (address, pid),
    ):
        await_ready(address)
        _ask_all(address, pid, asked.clients, asked.requests)


def _ask_all(address: str, pid: int, clients: int, requests: int) -> None:
    print(f"memory of the server before the first request: {memory_of(pid)['VmHWM']:.0f} MB at most")
    widths = (-24, 8, 8, 8, 8, 10)
    print(line(widths, [f"ms, of {requests} requests", "p50", "p95", "most", "CPU", "bytes"]))
    for name, path in _views().items():
        paths = [path.format(client=_client(clients), held=_client(HELD)) for _ in range(requests)]
        before = cpu_seconds(pid)
        answers = [answer_ms(f"{address}api/v1/{one}") for one in paths]
        times_ms, size = sorted(spent_ms for spent_ms, _ in answers), answers[-1][1]
        cpu_ms = (cpu_seconds(pid) - before) / requests * 1_000
        at = requests // 2, min(int(requests * 0.95), requests - 1), -1
        print(line(widths, [name, *(times_ms[place] for place in at), cpu_ms, size]), flush=True)
    memory = memory_of(pid)
    print(
        f"memory of the server: {memory['VmHWM']:.0f} MB at most, {memory['VmRSS']:.0f} MB at the end, of which "
        f"{memory['RssFile']:.0f} MB are pages of files: the code of its libraries"
    )


def _client(most: int) -> str:
    number = _CHOSEN.randrange(most)
    return f"user=team-{number % USERS:03}&client_id=service-{number:05}"


def _views() -> dict[str, str]:
    """Name -> path of a request; {client} is any client, {held} one that is held."""
    views = {name: name for name in ("summary", "throttles", "events")}
    for span in ("15m", "1h", "6h", "24h", "7d"):
        views[f"client, {span}"] = f"client?{{client}}&range={span}"
        views[f"held client, {span}"] = f"client?{{held}}&range={span}"
    return views | {
        "protected": "protected?{held}",
        "clients": "clients",
        "clients, search": "clients?search=service-01",
        "explain": "explain?{held}",
        "quotas": "quotas",
        "quotas, search": "quotas?search=team-1",
        "quotas, all": "quotas?limit=10000&sort=name",
        **{name: name for name in ("quotas/history", "pipeline", "dead_letters")},
    }


@contextmanager
def _going_on(folder: Path, clients: int, days: int) -> Iterator[str]:
    """The root of the tables, once they are made. The job goes on in a process of its own."""
    ours, its = get_context("spawn").Pipe()
    job = get_context("spawn").Process(target=_run_job, args=(folder, clients, days, its))
    job.start()
    try:
        root, told = ours.recv()
        print(told, flush=True)
        yield root
    finally:
        ours.send("over")
        job.join()


def _run_job(folder: Path, clients: int, days: int, other: "Connection[object, object]") -> None:
    began = time.perf_counter()
    week = Week(folder, clients, days, time.time_ns() // 1_000_000)
    made_seconds = time.perf_counter() - began
    week.keep_up()
    week.sort_days()
    kept_up_seconds = time.perf_counter() - began - made_seconds
    told = f"{clients} clients, {week.rows} rows of usage_by_minute; made in {made_seconds:.0f} s, "
    other.send((week.root, f"{told}one round of upkeep {kept_up_seconds:.0f} s"))
    next_round = time.monotonic() + _UPKEEP_SECONDS
    while not other.poll(TRIGGER_MS / 1_000):
        week.step(time.time_ns() // 1_000_000)
        if time.monotonic() >= next_round:
            week.keep_up()
            next_round = time.monotonic() + _UPKEEP_SECONDS


if __name__ == "__main__":
    main()
