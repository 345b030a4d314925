"""Shards decide, throttle and refuse together what one job for all users does: the same rows, to the last bit."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pipeline.stream.usage_columns import CollectedBatch, ReadingRules
from pipeline.stream.usage_reader import read_usage
from pipeline.tables.from_settings import open_quota_table
from pipeline.tables.quotas.edit import QuotaChange
from quota.snapshot import ALL_USERS, Share
from tests.faults.evidence import Message
from tests.faults.hand_job import _AUDIT, HandJob
from tests.pipeline.stream.messages import fetched, packed

USERS = [f"user-{number}" for number in range(9)]
CLIENTS = ["etl", "web", ""]
# Not from one run to the next, nor between jobs: the position among the records of a job.
OF_A_JOB = {"publish_seq"}


class ReadingJob(HandJob):
    """A job of its own that reads messages as the driver does.

    Args:
        folder: For its tables.
        share: The users for whom it decides.
        quotas_of: Whose quota table it reads; None: it has one of its own.
    """

    def __init__(self, folder: Path, share: Share, quotas_of: HandJob | None = None) -> None:
        super().__init__(folder, {"producer_byte_rate": 1_000.0}, in_memory=True, share=share)
        if quotas_of is not None:
            self.quota_table = open_quota_table(quotas_of.settings.tables)
        engine, stream = self.settings.engine, self.settings.stream
        self.reading = ReadingRules(engine.sample_window_ms, stream.max_event_age_ms, share)
        self.newest: list[int | None] = []

    def append(self, value: bytes | None, appended_at_ms: int) -> None:
        """A message that its broker has dated itself."""
        self.messages.append(Message(0, len(self.messages), appended_at_ms, b"", value))

    def _collect(self, frame: Any, count: int | None) -> CollectedBatch:
        messages = self.messages[self.spark.span(frame.batch_id)]
        table = fetched([one.value for one in messages], [one.appended_at_ms for one in messages])
        offsets = pa.array([one.offset for one in messages], pa.int64())
        table = table.set_column(table.schema.get_field_index("offset"), "offset", offsets)
        batch = read_usage(table, self.reading)
        self.newest.append(batch.newest_event_ms)
        return batch.for_share(self.share)


def random_event(random: Random, now_ms: int) -> Any:
    if random.random() < 0.03:
        return random.choice([7, {"user": "user-1"}, {"event_time_ms": now_ms, "user": "", "client_id": ""}])
    fields = {
        "event_time_ms": now_ms + random.choice([0, 0, -200, -700, -4_000, 300, 5_000]),
        "user": random.choice(USERS),
        "client_id": random.choice(CLIENTS),
        "broker_id": random.choice(["", "1"]),
        "produced_bytes": random.choice([None, 0, 100, 2_000, 60_000]),
        "fetched_bytes": random.choice([None, 500]),
        "io_time_ns": random.choice([None, 40_000_000]),
        "throttle_exempt": random.choice([False, True]),
    }
    return {name: value for name, value in fields.items() if value is not None}


def random_message(random: Random, now_ms: int) -> bytes | None:
    events = [random_event(random, now_ms) for _ in range(random.choice([0, 1, 3, 8]))]
    if random.random() < 0.1:
        return random.choice([None, b"no JSON", b"\xff\xff\xff\xff"])
    if random.random() < 0.4:
        return packed(*[event for event in events if isinstance(event, dict) and "client_id" in event])
    return json.dumps(events[0] if len(events) == 1 and random.random() < 0.5 else events).encode()


def random_change(random: Random) -> QuotaChange:
    rates = {
        "producer_byte_rate": random.choice([None, 500.0, 3_000.0]),
        "request_percentage": random.choice([None, 2.0]),
    }
    user = random.choice([*USERS, "<default>"])
    return QuotaChange(
        user, random.choice(["", "etl", "<default>"]), {**rates, "mode": random.choice(["enforce", "shadow"])}
    )


def rows(jobs: list[ReadingJob], name: str) -> list[dict[str, Any]]:
    found = [row for job in jobs for row in job.rows(name).to_pylist()]
    return sorted(({key: value for key, value in row.items() if key not in OF_A_JOB} for row in found), key=str)


# Of two, three and four shards; two again are for the long run.
@pytest.mark.parametrize("seed", [0, 1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_shards_write_together_what_one_job_does(tmp_path: Path, seed: int) -> None:
    random, count = Random(seed), 2 + seed % 3
    one = ReadingJob(tmp_path / "one", ALL_USERS)
    shards = [ReadingJob(tmp_path / str(number), Share(number, count), one) for number in range(count)]
    jobs = [one, *shards]
    for job in jobs:
        job.start()
    for _ in range(45):
        advance_ms = random.choice([50, 200, 200, 500, 1_500])
        messages = [random_message(random, one.clock.wall_ms) for _ in range(random.randrange(4))]
        change = random_change(random) if random.random() < 0.15 else None
        restarts = random.random() < 0.1
        if change is not None:
            one.quota_table.alter([change], _AUDIT)
        for job in jobs:
            job.clock.advance(advance_ms)
            for message in messages:
                job.append(message, job.clock.wall_ms)
            if restarts:
                job.start()
            job.step()
    # Each event is counted once, and the instants of all batches are the same.
    assert all(job.newest == one.newest for job in shards)
    for name in ("decisions", "usage", "throttle_events", "dead_letters"):
        assert rows(shards, name) == rows([one], name), name
        assert rows([one], name), f"nothing was compared in {name}"
    assert all(rows([job], "decisions") for job in shards)
    assert not any(rows([job], "dead_letters") for job in shards[1:])


def test_a_users_clock_ahead_moves_the_evaluation_of_another_shard_no_further(tmp_path: Path) -> None:
    jobs = [ReadingJob(tmp_path / str(share), share) for share in (ALL_USERS, Share(0, 2), Share(1, 2))]
    for job in jobs:
        job.start()
        event = {"event_time_ms": job.clock.wall_ms + 500_000, "user": "user-0", "client_id": ""}
        job.append(json.dumps(event).encode(), job.clock.wall_ms + 500_000)
        job.step()
    instants = [job.decider.last.evaluated_at_ms for job in jobs]
    assert instants == [jobs[0].clock.wall_ms + jobs[0].settings.stream.clock_tolerance_ms] * 3


def test_a_quota_without_a_user_is_not_put_in_force_by_a_shard(tmp_path: Path) -> None:
    job = ReadingJob(tmp_path, Share(0, 2))
    job.start()
    before = job.quotas.pin().version
    job.quota_table.alter([QuotaChange("", "etl", {"producer_byte_rate": 1.0})], _AUDIT)
    job.step()
    assert (job.quotas.pin().version, job.quotas.is_refused()) == (before, True)
    job.quota_table.alter([QuotaChange("", "etl", remove=True)], _AUDIT)
    job.step()
    assert (job.quotas.pin().version, job.quotas.is_refused()) == (before + 2, False)


def test_shares_of_a_batch_have_each_event_once() -> None:
    rules = ReadingRules(500, 86_400_000)
    table = fetched([random_message(Random(seed), 1_700_000_000_000) for seed in range(60)])
    whole = read_usage(table, rules)
    parts = [read_usage(table, replace(rules, share=Share(number, 3))) for number in range(3)]
    assert sum(part.good_count for part in parts) == whole.good_count > 0
    assert all(part.good_count + part.others_count == whole.good_count for part in parts)
    assert {part.newest_event_ms for part in parts} == {whole.newest_event_ms}
