"""A job that is killed leaves what a job leaves that was not: on real tables, without Kafka and Spark."""

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable

from pipeline.errors import PipelineError, Refused
from pipeline.failpoints import FAILPOINTS, FailpointReached
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from schemas.names import ClientKey
from tests.faults.generator import RATES
from tests.faults.hand_job import AUDIT, HandJob, Load, Trouble, owed_by
from tests.faults.usage_reading import read
from tests.pipeline.throttle.factories import clients


@pytest.mark.parametrize("in_memory", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_job_killed_at_every_failpoint_in_turn(
    in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(tmp_path, monkeypatch, in_memory=in_memory)
    for number, point in enumerate(FAILPOINTS):
        load.step()
        load.run_until_killed_at(point)
        if number % 6 == 3:
            load.edit(1.5 if number % 12 == 3 else 0.5)
        load.job.start()
    load.come_to_rest()
    verdict = load.job.verdict()
    assert verdict.as_json()["differences"] == []
    for check in ("usage", "decisions", "dead_letters", "begins", "renewals", "releases", "topic", "pairs"):
        assert verdict.compared[check] > 10, check


NOT_WAITED_FOR = ("usage", "batches", "decisions", "throttle_events", "sensor_state", "dead_letters")


@pytest.mark.parametrize("cut", [("usage",), NOT_WAITED_FOR])
def test_after_a_power_loss_the_job_goes_on_once_its_fixes_are_followed(
    cut: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(tmp_path, monkeypatch)
    for _ in range(8):
        load.step()
    load.run_until_killed_at("outbox.appended")
    for name in cut:
        cut_newest_commits(f"{load.job.settings.tables.root}/{name}")
    followed = 0
    while (error := refusal_of(load.job)) is not None:
        fix = re.search(r"(?:cd|mv) .*", error.fix)
        assert fix, error
        subprocess.run(["/bin/sh", "-e", "-c", fix[0]], check=True)
        followed += 1
    assert followed == len(cut)
    for _ in range(8):
        load.step()
    load.come_to_rest()
    job = load.job
    numbers = [record.publish_seq for record in job.broker.records]
    assert numbers == sorted({*numbers}), "consumers take no number twice"
    assert (
        0
        < sum(job.rows("usage")["request_count"].to_pylist())
        <= sum(row["request_count"] for row in read(job.messages, 500).usage.values())
    )


def cut_newest_commits(uri: str) -> None:
    """Leave nothing of a table's newest commit, and one line of the one before it."""
    *_, older, newest = sorted(Path(uri, "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    older.write_bytes(older.read_bytes().splitlines()[0])


def refusal_of(job: HandJob) -> PipelineError | None:
    """Why the job does not start; its checkpoint is younger than the tables, so it starts without."""
    try:
        create_missing(job.settings.tables.root)
        job.start(with_checkpoint=False)
    except PipelineError as exc:
        return exc
    return None


def test_time_does_not_go_back_when_usage_and_the_log_of_the_tables_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(tmp_path, monkeypatch)
    for _ in range(3):
        load.step()
    load.come_to_rest()
    before, end_offsets = load.job.decider.last, load.job.spark.range_of(load.job.spark.committed).end
    DeltaTable(f"{load.job.settings.tables.root}/usage").delete()
    clean_logs(load.job)
    load.job.clock.advance(7 * 3_600_000)
    load.job.start()
    assert load.job.recovered.end_offsets == end_offsets
    assert load.job.decider.last.evaluated_at_ms == before.evaluated_at_ms
    hours_ago_ms = before.evaluated_at_ms - 3_600_000
    load.job.send(f'{{"event_time_ms":{hours_ago_ms},"user":"u","client_id":"c"}}'.encode())
    load.job.step()
    assert load.job.decider.last.evaluated_at_ms == before.evaluated_at_ms


def test_a_debt_that_no_snapshot_has_outlives_a_restart(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    job.send(event(job, 100_000))
    job.step()
    job.clock.advance(3_000)
    job.send(event(job, 1))
    job.step()
    (before,) = owed_by(job).values()
    shutil.rmtree(Path(job.settings.tables.root, "sensor_state"))
    create_missing(job.settings.tables.root)
    job.start()
    (after,) = owed_by(job).values()
    assert after["owed_ms"] == before["owed_ms"] > 0


def test_a_debt_outlives_the_log_entries_of_its_batch(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    for user in ("u", "other"):
        job.send(event(job, 100_000, user))
        job.step()
    before = {user: owed["owed_ms"] for user, owed in owed_by(job).items()}
    clean_logs(job)
    job.start()
    after = {user: owed["owed_ms"] for user, owed in owed_by(job).items()}
    assert after == before
    assert len(before) == 2


@pytest.mark.parametrize("restarts", [False, True])
def test_late_usage_meets_the_same_bucket_with_and_without_a_restart(restarts: bool, tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES, in_memory=True)
    job.start()
    for sent in (event(job, 60_000), b"[]", b"[]"):
        job.send(sent)
        job.step()
        job.clock.advance(9_000)
        job.send(event(job, 1, user="other"))
        job.step()
    assert job.tables.sensor_state.newest() is not None
    if restarts:
        job.start()
    job.clock.advance(1_000)
    job.send(event(job, 90_000, ago_ms=5_000), event(job, 50_000))
    job.step()
    (owed,) = owed_by(job).values()
    assert (owed["tokens"], owed["owed_ms"]) == (-75_000.0, 7_500)
    assert job.verdict().count("different") == 0


def tokens_of(job: HandJob, user: str) -> float:
    client = clients(ClientKey("", user, "c"))
    _, claims = job.decider.claims(client, np.zeros(1, np.int64), job.clock.now().steady_ms)
    return float(claims.tokens[0])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_snapshot_makes_full_buckets_new_with_and_without_a_restart(restarts: bool, tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES, in_memory=True)
    job.start()
    job.send(event(job, 15_000))
    job.step()
    for wait_ms in (100, 2_900, 2_200):  # the snapshot of the last one is of when the bucket of u is full again
        job.clock.advance(wait_ms)
        job.send(event(job, 1, user="other"))
        job.step()
    if restarts:
        job.start()
    job.clock.advance(200)
    job.send(event(job, 200_000, ago_ms=6_100))  # of 700 ms before the bucket was charged
    job.step()
    assert tokens_of(job, "u") == 20_000 - 200_000 + 10_000 * 5.9
    assert job.verdict().count("different") == 0


@pytest.mark.parametrize("starts", [(), ("edited",), ("released",), ("forgotten",), ("edited", "forgotten")])
@pytest.mark.parametrize("quiet_ms", [200, 6_000])
@pytest.mark.parametrize("has_usage", [False, True])
def test_who_is_forgiven_is_released_at_once_and_begins_with_a_full_bucket(
    starts: tuple[str, ...], quiet_ms: int, has_usage: bool, tmp_path: Path
) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()

    def go_on(moment: str) -> None:
        if moment in starts:
            job.start()
        job.clock.advance(100)

    job.send(event(job, 200_000), event(job, 200_000, user="other"))
    job.step()
    job.forgive("u")
    go_on("edited")
    job.step()
    assert [(one.user, one.cause) for one in job.broker.records][2:] == [("u", "forgiven")]
    assert tokens_of(job, "u") < 0, "the first batch decided with it forgets"
    go_on("released")
    job.clock.advance(quiet_ms)  # when the windows are empty, nothing but a snapshot knows of the debt
    job.send(event(job, 1_000) if has_usage else b"[]")
    job.step()
    go_on("forgotten")
    begun = tokens_of(job, "u")
    assert begun >= 19_000
    assert tokens_of(job, "other") < begun
    job.clock.advance(quiet_ms)
    job.send(event(job, 1_000))
    job.step()
    assert tokens_of(job, "u") == 19_000
    job.send(event(job, 1_000))
    job.step()
    assert tokens_of(job, "u") == 18_000
    go_on("forgotten")
    while len(job.purgatory):
        job.clock.advance(500)
        job.step()
    assert job.verdict().as_json()["differences"] == []


def test_a_batch_that_has_pinned_older_quotas_holds_no_client_that_was_forgiven_meanwhile(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES, in_memory=True)
    job.start()

    def meanwhile() -> None:
        job.forgive("u")
        job.quotas.poll()
        job.purgatory.quotas_changed(job.quotas.pin())

    job.meanwhile = meanwhile
    job.send(event(job, 100_000))
    job.step()
    assert job.broker.records == []
    job.meanwhile = lambda: None
    job.send(event(job, 100_000))
    job.step()
    assert [one.cause for one in job.broker.records] == ["violation"], "usage after it counts"
    job.step()
    assert [one.cause for one in job.broker.records] == ["violation"], "it is forgiven once"


@pytest.mark.parametrize(("fetched", "cause"), [(100_000, "quota_changed"), (10_000, "forgiven")])
def test_a_client_that_is_forgiven_for_one_type_is_held_on_for_another(
    fetched: int, cause: str, tmp_path: Path
) -> None:
    job = HandJob(tmp_path, {"request_percentage": 1_000.0})
    of_pair, of_client_id = {"producer_byte_rate": 10_000.0}, {"consumer_byte_rate": 10_000.0}
    job.quota_table.alter([QuotaChange("u", "c", of_pair), QuotaChange("", "c", of_client_id)], AUDIT)
    job.start()
    used = {"produced_bytes": 200_000, "fetched_bytes": fetched}
    job.send(json.dumps({"event_time_ms": job.clock.wall_ms, "user": "u", "client_id": "c", **used}).encode())
    job.step()
    job.forgive("u", "c")
    job.clock.advance(200)
    job.step()
    begun, settled = job.broker.records
    assert (begun.quota_type, settled.cause) == ("producer_byte_rate", cause)
    assert settled.quota_type == ("consumer_byte_rate" if cause == "quota_changed" else "producer_byte_rate")
    while len(job.purgatory):
        job.send(b"[]")
        job.clock.advance(500)
        job.step()
    assert job.verdict().as_json()["differences"] == []


def test_a_client_that_moves_to_a_sensor_that_was_forgiven_long_ago_is_not_forgiven(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.quota_table.alter([QuotaChange("u", "c", RATES)], AUDIT)
    job.forgive("u")
    job.start()
    job.send(event(job, 100_000))
    job.step()
    job.start()
    job.quota_table.alter([QuotaChange("u", "c", remove=True)], AUDIT)
    job.clock.advance(200)
    job.step()
    assert [one.cause for one in job.broker.records] == ["violation", "quota_changed"]


def test_a_start_releases_no_one_who_began_to_owe_after_a_debt_was_forgiven(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    job.send(event(job, 100_000))
    job.step()
    job.forgive("u")
    job.step()
    job.send(event(job, 100_000))
    job.step()
    job.clock.advance(100)
    job.start()
    job.step()
    assert [one.cause for one in job.broker.records] == ["violation", "forgiven", "violation"]


@pytest.mark.parametrize("point", ["usage.appended", "batches.appended", "sensor_state.appended"])
def test_a_new_query_at_the_instant_of_the_old_ones_last_batch_comes_after_it(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(tmp_path, monkeypatch, in_memory=True)
    job = load.job
    began_ms = job.clock.wall_ms

    def step(user: str) -> None:
        job.send(event(job, 60_000, user, ago_ms=job.clock.wall_ms - began_ms))
        job.step()
        job.clock.advance(10)

    for user in ("first", "second", "third"):
        step(user)
    job.start(with_checkpoint=False)
    with load.armed(point), pytest.raises(FailpointReached):
        step("fourth")
    for user in ("fifth", "sixth"):
        job.start()
        step(user)
    job.start()
    load.come_to_rest()
    assert job.verdict().as_json()["differences"] == []


def test_two_starts_after_one_batch_know_the_same_buckets_though_a_quota_was_lowered_in_between(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    job.send(event(job, 10_000))
    job.step()
    job.start()
    assert job.tables.sensor_state.write_if_due(job.decider, job.clock.now()), "killed right after it"
    job.edit({name: rate / 2 for name, rate in RATES.items()})
    job.start()
    job.clock.advance(4_000)
    job.send(event(job, 1, user="other"), event(job, 90_000, ago_ms=5_000))
    job.step()
    job.clock.advance(6_000)
    job.send(event(job, 1, user="other"))
    job.step()
    while len(job.purgatory):  # the late usage throttles
        job.clock.advance(500)
        job.step()
    verdict = job.verdict()
    assert verdict.compared["buckets"] >= 2, "before the restarts and after the late usage"
    assert verdict.as_json()["differences"] == []


def test_a_throttle_shortened_by_an_edit_ends_while_a_batch_with_older_quotas_is_under_way(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    job.send(event(job, 100_000))
    job.step()

    def meanwhile() -> None:
        job.edit({name: rate * 2 for name, rate in RATES.items()})
        job.quotas.poll()
        job.purgatory.quotas_changed(job.quotas.pin())
        while len(job.purgatory):
            job.clock.advance(100)
            job.purgatory.tick()

    job.meanwhile = meanwhile
    job.send(event(job, 1, user="other"))
    job.step()
    assert [record.cause for record in job.broker.records][:2] == ["violation", "quota_changed"]
    assert job.broker.records[-1].cause == "expired"
    assert job.verdict().as_json()["differences"] == []


def clean_logs(job: HandJob) -> None:
    """As upkeep does when nothing has come for long: the facts in the commits of usage and batches are gone."""
    for name in ("usage", "batches"):
        uri = f"{job.settings.tables.root}/{name}"
        table = DeltaTable(uri)
        table.optimize.compact()
        table.create_checkpoint()
        for commit in sorted(Path(uri, "_delta_log").glob("*.json"))[:-1]:
            commit.unlink()


def event(job: HandJob, produced_bytes: int, user: str = "u", ago_ms: int = 0) -> bytes:
    now_ms = job.clock.wall_ms - ago_ms
    return f'{{"event_time_ms":{now_ms},"user":"{user}","client_id":"c","produced_bytes":{produced_bytes}}}'.encode()


def test_numbers_of_records_are_not_given_again_when_their_rows_have_been_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(tmp_path, monkeypatch)
    for _ in range(3):
        load.step()
    load.come_to_rest()
    written = len(load.job.broker.records)
    DeltaTable(f"{load.job.settings.tables.root}/throttle_events").delete()
    load.job.start()
    assert load.job.tables.throttle_events.newest()[0] == written - 1
    load.step()
    load.come_to_rest()
    assert [record.publish_seq for record in load.job.broker.records] == list(range(len(load.job.broker.records)))
    assert len(load.job.broker.records) > written


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 9))])
def test_random_trouble(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(tmp_path, monkeypatch, seed, in_memory=seed == 1)
    Trouble(load, seed).run(kills=8)
    load.come_to_rest()
    assert load.job.verdict().as_json()["differences"] == []


def test_a_driver_that_was_taken_over_writes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(tmp_path, monkeypatch, in_memory=True)
    for _ in range(3):
        load.step()
    load.job.send(event(load.job, 200_000))
    load.job.step()
    first, load.job = load.job, copy.copy(load.job)
    load.job.start()
    before = first.evidence()
    first.send(event(first, 60_000))
    first.clock.advance(2_000)
    for act in (first.purgatory.tick, first.step):
        with pytest.raises(PipelineError, match=r"another driver|fenced this one") as refused:
            act()
        assert refused.value.exit_code == 4
    assert first.evidence().tables == before.tables
    for _ in range(3):
        load.step()
    load.come_to_rest()
    assert load.job.verdict().as_json()["differences"] == []


def test_nothing_is_stored_of_a_batch_that_may_be_of_another_topic_of_the_name(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES, in_memory=True)
    job.start()
    job.send(event(job, 1))
    job.step()
    job.send(event(job, 2), b"no usage")
    job.meanwhile = lambda: setattr(job, "topic_ids", {**job.topic_ids, "usage": "second"})
    with pytest.raises(Refused, match=r"its id is second, and the offsets in the tables are those of first\. Fix: .*"):
        job.step()
    assert [job.rows(name).num_rows for name in ("usage", "dead_letters")] == [1, 0]
    job.start()
    assert job.recovered.topic_ids["usage"] == "first", "that of the newest stored batch"


@pytest.mark.parametrize("topic", ["throttle_topic", "marker_topic"])
def test_a_throttle_or_marker_topic_made_anew_is_refused_while_the_job_runs_and_at_a_start(
    tmp_path: Path, topic: str
) -> None:
    job, usage_rows = job_that_holds_alice(tmp_path)
    name, command = getattr(job.settings.kafka, topic), r"Fix: .*kquota run .* --take-topic$"
    job.topic_ids[name] = "second"
    job.send(event(job, 1))
    with pytest.raises(Refused, match=rf"'{name}' was .*made anew.* its id is second, before it was first.*{command}"):
        job.step()
    assert job.rows("usage").num_rows == usage_rows
    with pytest.raises(Refused, match=rf"'{name}' was .*made anew"):
        job.start()
    assert [record.publish_seq for record in job.broker.records] == [0]


def test_on_a_new_throttle_topic_the_running_throttles_are_published_again_with_their_numbers(tmp_path: Path) -> None:
    job, _ = job_that_holds_alice(tmp_path)
    (held,) = job.broker.records
    job.broker.records.clear()
    job.topic_ids[job.settings.kafka.throttle_topic] = "second"
    job.start(takes_topic=True)
    assert job.broker.records == [held]
    assert job.broker.marker is not None
    assert job.broker.marker.next_seq == 1
    job.send(event(job, 1))
    job.step()
    published = list(job.broker.records)
    job.start()
    assert job.broker.records == published, "it is on the topic that the newest batch knows"
    for _ in range(40):
        job.clock.advance(1_000)
        job.step()
    numbers = [record.publish_seq for record in job.broker.records]
    assert numbers == list(range(len(numbers)))
    assert job.broker.records[-1].action == "release"


def job_that_holds_alice(folder: Path) -> tuple[HandJob, int]:
    """A job with one record on the topic, and how many rows of usage it has."""
    job = HandJob(folder, RATES, in_memory=True)
    job.start()
    for _ in range(3):
        job.send(event(job, 200_000))
        job.clock.advance(100)
        job.step()
    return job, job.rows("usage").num_rows
