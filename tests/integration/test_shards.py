"""Two real shards beside one job for all users, on one broker: the same usage and offenders, all of it explained."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pipeline.demo.broker import EmbeddedBroker
from quota.snapshot import Share
from tests.integration.running_job import RunningJob, running_job, usage
from tests.pipeline.stream.messages import packed

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

USERS = [f"user-{number}" for number in range(12)]
OFFENDERS = set(USERS[::2])


@pytest.fixture(scope="module")
def jobs(
    broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningJob, list[RunningJob]]]:
    """One job for all users; two shards, which read its usage topic and have a throttle topic of their own."""
    servers = broker.bootstrap_servers
    with ExitStack() as stack:
        one = stack.enter_context(running_job("undivided", tmp_path_factory.mktemp("one"), servers))
        folder = tmp_path_factory.mktemp("shards")
        shards = [RunningJob("divided", folder, servers) for _ in range(2)]
        for number, shard in enumerate(shards):
            shard.overrides = {"KQUOTA_SHARD": f"{number}/2", "KQUOTA_KAFKA__USAGE_TOPIC": one.usage_topic}
            stack.callback(shard.close)
        shards[0].create_topics()
        for job in (one, shards[0]):
            made = job.command("tables", "create")
            assert made.returncode == 0, made.stderr
            added = job.command("quotas", "alter", "--user-defaults", "--add-config", "producer_byte_rate=1000")
            assert added.returncode == 0, added.stderr
        for job in (one, *shards):
            job.start()
        yield one, shards


def send_for_a_while(job: RunningJob, rounds: int) -> int:
    """Usage of all users, of some above their quotas; a few messages are refused. Returns how many events are good."""
    chance, good = random.Random(3), 0
    for _ in range(rounds):
        events = [usage(user, 4_000 if user in OFFENDERS else 10, client_id=chance.choice("ab")) for user in USERS]
        job.send(events, packed(*events), b"no JSON", [*events[:2], 7])
        good += 2 * len(events) + 2
        time.sleep(0.3)
    return good


def sums(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Usage by sample window and client, over all batches."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        for name in ("produced_bytes", "request_count", "event_count"):
            found[row["sample_start_ms"], row["user"], row["client_id"], name] += row.get(name) or 0
    return found


def good_count(job: RunningJob) -> int:
    return sum(job.table("batches", ["good_count"])["good_count"].to_pylist())


def test_two_shards_do_together_what_one_job_does(jobs: tuple[RunningJob, list[RunningJob]]) -> None:
    one, shards = jobs
    good = send_for_a_while(one, 15)
    for user in OFFENDERS:
        one.wait_for_record(user=user, action="throttle")
    shards[0].kill()
    good += send_for_a_while(one, 5)
    shards[0].start()
    one.wait_until(lambda: good_count(one) == good, "the one job to have read all")
    one.wait_until(lambda: sum(map(good_count, shards)) == good, "the shards to have read all")

    wanted = sums(one.table("usage").to_pylist())
    assert sums([row for shard in shards for row in shard.table("usage").to_pylist()]) == wanted
    for number, shard in enumerate(shards):
        users = set(shard.table("usage", ["user"])["user"].to_pylist())
        assert users == {user for user in USERS if Share(number, 2).has(user)}
    dead = [len(job.table("dead_letters", ["cause"])) for job in (one, *shards)]
    assert dead[0] == dead[1] > 0
    assert dead[2] == 0

    for user in OFFENDERS:
        shards[0].wait_for_record(user=user, action="throttle")
    decided = [set(job.table("decisions", ["user"])["user"].to_pylist()) for job in (one, *shards)]
    assert decided[0] == decided[1] | decided[2] == OFFENDERS
    verified = [job.command("throttles", "verify") for job in (one, *shards)]
    assert [done.returncode for done in verified] == [0, 0, 0], [done.stdout + done.stderr for done in verified]


def test_a_row_without_a_user_is_refused_by_the_command_line_and_by_the_job(
    jobs: tuple[RunningJob, list[RunningJob]],
) -> None:
    _, shards = jobs
    refused = shards[1].command("quotas", "alter", "--client", "etl", "--add-config", "producer_byte_rate=1000")
    assert refused.returncode == 5
    assert "names neither a user nor the default user" in refused.stderr


def test_a_shard_of_another_division_does_not_start(jobs: tuple[RunningJob, list[RunningJob]]) -> None:
    _, shards = jobs
    refused = shards[0].command("run", "--shard", "0/3")
    assert refused.returncode == 4, json.dumps(refused.stderr)
    assert "must be one of 2" in refused.stderr
