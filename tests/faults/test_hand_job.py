"""A job that is killed leaves what a job leaves that was not, and forgives, forgets and refuses what it must."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.errors import PipelineError, Refused
from pipeline.failpoints import FAILPOINTS, FailpointReached
from pipeline.stream import usage_columns
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.tenants import TenantChange
from pipeline.throttle.shapes import CLIENTS, types_of
from schemas.names import ClientKey
from tests.faults.check_tables import reading_of
from tests.faults.generator import RATES
from tests.faults.hand_job import HandJob, Load, Pause, armed, edit_during_the_next_batch
from tests.faults.rig import AUDIT, starts_in
from tests.pipeline.throttle.factories import clients


def started(folder: Path, rates: dict[str, float] = RATES, in_memory: bool = True) -> HandJob:
    job = HandJob(folder, rates, in_memory)
    job.start()
    return job


def event(job: HandJob, produced_bytes: int, user: str = "u", ago_ms: int = 0) -> bytes:
    now_ms = job.clock.wall_ms - ago_ms
    return f'{{"event_time_ms":{now_ms},"user":"{user}","client_id":"c","produced_bytes":{produced_bytes}}}'.encode()


def use(job: HandJob, produced_bytes: int, user: str = "u", ago_ms: int = 0) -> None:
    """A batch with one event."""
    job.send(event(job, produced_bytes, user, ago_ms))
    job.step()


def causes(job: HandJob) -> list[str]:
    return [record.cause for record in job.broker.records]


def assert_equal_at_rest(job: HandJob) -> None:
    """When every throttle has ended, the judge finds nothing."""
    while len(job.purgatory):
        job.clock.advance(500)
        job.step()
    assert job.verdict().told() == []


@pytest.mark.parametrize("in_memory", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_job_killed_at_every_failpoint_in_turn(in_memory: bool, tmp_path: Path) -> None:
    load = Load(tmp_path, in_memory=in_memory)
    for number, point in enumerate(FAILPOINTS):
        load.step()
        load.run_until_killed_at(point)
        if number % 6 == 3:
            load.edit(1.5 if number % 12 == 3 else 0.5)
        load.job.start()
    load.come_to_rest()
    checks = ("usage", "decisions", "dead_letters", "begins", "renewals", "releases", "topic", "pairs")
    assert load.job.verdict(dict.fromkeys(checks, 11)).told() == []


def test_a_job_that_lends_is_killed_and_the_level_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    load = Load(tmp_path, in_memory=True)

    def lend(factor: float) -> None:
        """Three offenders have what two of them have by their quotas, and lend it to each other."""
        terms = {name: 2 * rate * factor for name, rate in RATES.items()} | {"lend": True}
        patterns = [f"offender-{number}" for number in range(3)]
        load.job.tenant_table.alter([TenantChange("team", terms, {"user_patterns": patterns})], AUDIT)

    lend(1.0)
    for number, point in enumerate([*FAILPOINTS, *FAILPOINTS]):
        load.step()
        if number % 4 == 1:
            load.send_burst()
        load.run_until_killed_at(point)
        if number % 5 == 3:
            lend(0.5 + number % 3)
        load.job.start()
    load.come_to_rest()
    checks = ("usage", "decisions", "begins", "renewals", "releases", "topic", "pairs", "levels", "demands")
    assert load.job.verdict(dict.fromkeys(checks, 5)).told() == []


NOT_WAITED_FOR = ("usage", "batches", "decisions", "throttle_events", "sensor_state", "dead_letters")


@pytest.mark.parametrize("cut", [("usage",), NOT_WAITED_FOR])
def test_after_a_power_loss_the_job_goes_on_once_its_fixes_are_followed(cut: tuple[str, ...], tmp_path: Path) -> None:
    load = Load(tmp_path)
    load.steps(8)
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
    load.steps(8)
    load.come_to_rest()
    numbers = [record.publish_seq for record in load.job.broker.records]
    assert numbers == sorted({*numbers}), "consumers take no number twice"
    counted = sum(load.job.rows("usage")["request_count"].to_pylist())
    assert 0 < counted <= sum(row["request_count"] or 0 for row in reading_of(load.job.messages, 500).usage.values())


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


def clean_logs(job: HandJob) -> None:
    """As upkeep does when nothing has come for long: the facts in the commits of usage and batches are gone."""
    for name in ("usage", "batches"):
        uri = f"{job.settings.tables.root}/{name}"
        table = DeltaTable(uri)
        table.optimize.compact()
        table.create_checkpoint()
        for commit in sorted(Path(uri, "_delta_log").glob("*.json"))[:-1]:
            commit.unlink()


def test_time_does_not_go_back_when_usage_and_the_log_of_the_tables_are_gone(tmp_path: Path) -> None:
    job = started(tmp_path, in_memory=False)
    use(job, 1)
    use(job, 1)
    before, end_offsets = job.decider.last, job.spark.range_of(job.spark.committed).end
    DeltaTable(f"{job.settings.tables.root}/usage").delete()
    clean_logs(job)
    job.clock.advance(7 * 3_600_000)
    job.start()
    assert job.recovered.end_offsets == end_offsets
    assert job.decider.last.evaluated_at_ms == before.evaluated_at_ms
    use(job, 1, ago_ms=8 * 3_600_000)
    assert job.decider.last.evaluated_at_ms == before.evaluated_at_ms


def lose_snapshots(job: HandJob) -> None:
    shutil.rmtree(Path(job.settings.tables.root, "sensor_state"))
    create_missing(job.settings.tables.root)


@pytest.mark.parametrize("lose", [lose_snapshots, clean_logs])
def test_a_debt_that_no_snapshot_has_outlives_a_restart(lose: Callable[[HandJob], None], tmp_path: Path) -> None:
    job = started(tmp_path, in_memory=False)
    use(job, 100_000)
    job.clock.advance(3_000)
    use(job, 100_000, "other")
    held = job.purgatory.held()
    before = owed_ms(job, held)
    lose(job)
    job.start()
    assert owed_ms(job, held) == before
    assert len(before) == 2


def owed_ms(job: HandJob, held: pa.Table) -> list[int]:
    _, claims = job.decider.claims(held.select(CLIENTS.names), types_of(held), job.clock.now().steady_ms)
    owed: list[int] = claims.owed_ms.tolist()
    return owed


def tokens_of(job: HandJob, user: str) -> float:
    client = clients(ClientKey("", user, "c"))
    _, claims = job.decider.claims(client, np.zeros(1, np.int64), job.clock.now().steady_ms)
    return float(claims.tokens[0])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_snapshot_makes_full_buckets_new_with_and_without_a_restart(restarts: bool, tmp_path: Path) -> None:
    job = started(tmp_path)
    use(job, 15_000)
    for wait_ms in (100, 2_900, 2_200):  # the snapshot of the last one is of when the bucket of u is full again
        job.clock.advance(wait_ms)
        use(job, 1, user="other")
    if restarts:
        job.start()
    job.clock.advance(200)
    use(job, 200_000, ago_ms=6_100)  # of 700 ms before the bucket was charged
    assert tokens_of(job, "u") == 20_000 - 200_000 + 10_000 * 5.9
    assert job.verdict().count("different") == 0


STARTS = [(), ("edited",), ("released",), ("forgotten",), ("edited", "forgotten")]
QUIET = [  # with starts only where no usage tells of the debt; the others in the long run
    pytest.param(starts, *quiet, marks=pytest.mark.long if starts and quiet != (6_000, False) else ())
    for starts, quiet in product(STARTS, [(200, True), (6_000, True), (6_000, False)])
]


@pytest.mark.parametrize(("starts", "quiet_ms", "has_usage"), QUIET)
def test_who_is_forgiven_is_released_at_once_and_begins_with_a_full_bucket(
    starts: tuple[str, ...], quiet_ms: int, has_usage: bool, tmp_path: Path
) -> None:
    job = started(tmp_path)

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
    for tokens in (19_000, 18_000):
        use(job, 1_000)
        assert tokens_of(job, "u") == tokens
    go_on("forgotten")
    assert_equal_at_rest(job)


def test_a_batch_with_older_quotas_holds_no_client_that_was_forgiven_meanwhile(tmp_path: Path) -> None:
    job = started(tmp_path)
    edit_during_the_next_batch(job, lambda: job.forgive("u"))
    use(job, 100_000)
    assert causes(job) == []
    use(job, 100_000)
    assert causes(job) == ["violation"], "usage after it counts"
    job.step()
    assert causes(job) == ["violation"], "it is forgiven once"


def test_a_batch_with_older_quotas_holds_a_user_but_for_who_has_a_quota_by_now(tmp_path: Path) -> None:
    job = started(tmp_path)
    edit_during_the_next_batch(job, lambda: job.quota_table.alter([QuotaChange("u", "other", RATES)], AUDIT))
    use(job, 200_000)
    assert [(one.quota_version, *(one.except_client_ids or ())) for one in job.broker.records] == [(2, "other")]
    assert_equal_at_rest(job)


@pytest.mark.parametrize(("fetched", "cause"), [(100_000, "quota_changed"), (10_000, "forgiven")])
def test_a_client_that_is_forgiven_for_one_type_is_held_on_for_another(
    fetched: int, cause: str, tmp_path: Path
) -> None:
    job = HandJob(tmp_path, {"request_percentage": 1_000.0}, in_memory=True)
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
    assert_equal_at_rest(job)


def test_a_client_that_moves_to_a_sensor_that_was_forgiven_long_ago_is_not_forgiven(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES, in_memory=True)
    job.quota_table.alter([QuotaChange("u", "c", RATES)], AUDIT)
    job.forgive("u")
    job.start()
    use(job, 100_000)
    job.start()
    job.quota_table.alter([QuotaChange("u", "c", remove=True)], AUDIT)
    job.clock.advance(200)
    job.step()
    assert causes(job) == ["violation", "quota_changed"]


def test_a_start_releases_no_one_who_began_to_owe_after_a_debt_was_forgiven(tmp_path: Path) -> None:
    job = started(tmp_path)
    use(job, 100_000)
    job.forgive("u")
    job.step()
    use(job, 100_000)
    job.clock.advance(100)
    job.start()
    job.step()
    assert causes(job) == ["violation", "forgiven", "violation"]


@pytest.mark.parametrize("point", ["usage.appended", "batches.appended", "sensor_state.appended"])
def test_new_queries_at_the_instant_of_the_old_ones_last_batch_come_after_it(point: str, tmp_path: Path) -> None:
    load = Load(tmp_path, in_memory=True)
    job = load.job
    began_ms = job.clock.wall_ms

    def step(user: str) -> None:
        use(job, 60_000, user, ago_ms=job.clock.wall_ms - began_ms)
        job.clock.advance(10)

    for _ in range(8):
        step("first")
    job.start(with_checkpoint=False)
    with armed(point), pytest.raises(FailpointReached):
        step("second")
    for user in ("third", "fourth"):
        job.start()
        step(user)
    for _ in range(2):
        job.start(with_checkpoint=False)
        step("fifth")
    job.start()
    assert_equal_at_rest(job)


def test_two_starts_after_one_batch_know_the_same_buckets_though_a_quota_was_lowered(tmp_path: Path) -> None:
    job = started(tmp_path)
    use(job, 10_000)
    job.start()
    assert job.tables.sensor_state.write_if_due(job.decider, job.clock.now()), "killed right after it"
    job.edit({name: rate / 2 for name, rate in RATES.items()})
    job.start()
    job.clock.advance(4_000)
    job.send(event(job, 1, user="other"), event(job, 90_000, ago_ms=5_000))
    job.step()
    job.clock.advance(6_000)
    use(job, 1, user="other")
    assert_equal_at_rest(job)  # the late usage throttles
    assert job.verdict().compared["buckets"] >= 2, "before the restarts and after the late usage"


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_start_after_a_snapshot_adds_nothing_to_the_batch_before_it(is_repeated: bool, tmp_path: Path) -> None:
    """That batch had no decision; decided again with the debts of before an earlier snapshot, it has one.

    After a power loss Spark may repeat it, if the disk had the snapshot and not Spark's commit.
    """
    job = started(tmp_path)
    use(job, 1, "other")
    use(job, 90_000, ago_ms=40_000)
    job.start()
    job.send(event(job, 100, ago_ms=39_500), event(job, 15_000, "other"))
    job.step()
    job.start()
    with armed("sensor_state.appended"), pytest.raises(FailpointReached):
        use(job, 1, ago_ms=39_000)
    if is_repeated:
        job.spark.ends.pop()
        job.spark.committed -= 1
    job.start()
    for _ in range(2):
        job.step()
    job.clock.advance(1_000)
    use(job, 1, "other")  # a snapshot goes before it
    assert_equal_at_rest(job)


def test_numbers_of_records_are_not_given_again_when_their_rows_have_been_trimmed(tmp_path: Path) -> None:
    job = started(tmp_path, in_memory=False)
    use(job, 100_000)
    assert_equal_at_rest(job)
    written = len(job.broker.records)
    DeltaTable(f"{job.settings.tables.root}/throttle_events").delete()
    job.start()
    assert job.tables.throttle_events.newest()[0] == written - 1
    use(job, 100_000)
    numbers = [record.publish_seq for record in job.broker.records]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > written


def test_nothing_is_stored_of_a_batch_that_may_be_of_another_topic_of_the_name(tmp_path: Path) -> None:
    job = started(tmp_path)
    use(job, 1)
    job.send(event(job, 2), b"no usage")
    job.meanwhile = lambda: setattr(job, "topic_ids", {**job.topic_ids, "usage": "second"})
    with pytest.raises(Refused, match=r"its id is second, and the offsets in the tables are those of first\. Fix: .*"):
        job.step()
    assert [job.rows(name).num_rows for name in ("usage", "dead_letters")] == [1, 0]
    job.start()
    assert job.recovered.topic_ids["usage"] == "first", "that of the newest stored batch"


def test_no_check_is_based_on_a_batch_that_could_not_be_stored(tmp_path: Path) -> None:
    job = started(tmp_path)
    use(job, 200_000)
    job.clock.advance(1_000)
    job.send(event(job, 100_000))
    job.meanwhile = lambda: setattr(job, "topic_ids", {"usage": "second"})
    with pytest.raises(Refused):
        job.step()
    job.clock.advance(6_000)
    with pytest.raises(Refused):
        job.purgatory.tick()
    assert causes(job) == ["violation"]
    job.meanwhile, job.topic_ids = lambda: None, {}
    job.start()
    assert_equal_at_rest(job)


@pytest.mark.parametrize("topic", ["throttle_topic", "marker_topic"])
def test_a_throttle_or_marker_topic_made_anew_is_refused_running_or_at_a_start(tmp_path: Path, topic: str) -> None:
    job = started(tmp_path)
    use(job, 200_000)
    name, command = getattr(job.settings.kafka, topic), r"Fix: .*kquota run .* --take-topic$"
    job.topic_ids[name] = "second"
    with pytest.raises(Refused, match=rf"'{name}' was .*made anew.* its id is second, before it was first.*{command}"):
        use(job, 1)
    assert job.rows("usage").num_rows == 1
    with pytest.raises(Refused, match=rf"'{name}' was .*made anew"):
        job.start()
    assert [record.publish_seq for record in job.broker.records] == [0]


def test_on_a_new_throttle_topic_the_running_throttles_are_published_again(tmp_path: Path) -> None:
    job = started(tmp_path)
    use(job, 200_000)
    (held,) = job.broker.records
    job.broker.records.clear()
    job.topic_ids[job.settings.kafka.throttle_topic] = "second"
    job.start(takes_topic=True)
    assert job.broker.records == [held]
    assert job.broker.marker is not None
    assert job.broker.marker.next_seq == 1
    use(job, 1)
    published = list(job.broker.records)
    job.start()
    assert job.broker.records == published, "it is on the topic that the newest batch knows"
    while len(job.purgatory):
        job.clock.advance(1_000)
        job.step()
    numbers = [record.publish_seq for record in job.broker.records]
    assert numbers == list(range(len(numbers)))
    assert job.broker.records[-1].action == "release"


@pytest.mark.parametrize("limit", [1_000, 999])
def test_usage_of_names_beyond_the_limit_is_that_of_one_client_and_never_sooner(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_columns, "MOST_NEW_NAMES", limit)
    job = started(tmp_path)
    for names in (range(600), range(400, 1_000), range(1_000, 1_003)):
        job.send(*(event(job, 1, "many").replace(b'"c"', b'"pod-%d"' % name) for name in names))
        job.step()
        job.clock.advance(100)
    verdict = job.verdict()
    assert verdict.compared["folded_events"] == 1_003 - limit
    assert ["is folded; its user has 1000 names" in line for line in verdict.told()] == [True] * (limit < 1_000)


def test_a_start_is_found_in_the_log_also_where_it_took_up_no_throttle() -> None:
    recovered = "INFO job.job tables and recovery 1.8 s"
    log = ["10:00:01.000 INFO throttle.purgatory took up 3 running throttles", f"10:00:02.000 {recovered}",
           f"10:01:05.500 {recovered}"]  # fmt: skip
    found = starts_in(log, 20_000 * 86_400 + 40_000.0)
    assert [start_ms % 86_400_000 for start_ms in found] == [36_001_000, 36_065_500]


def test_a_tenant_that_is_edited_while_a_snapshot_is_stored_begins_at_rest(tmp_path: Path) -> None:
    load = Load(tmp_path, in_memory=True)
    job = load.job

    def edit(factor: float) -> None:
        terms = {name: rate * factor for name, rate in RATES.items()} | {"lend": True}
        job.tenant_table.alter([TenantChange("team", terms, {"user_patterns": ["offender-*"]})], AUDIT)
        job.quotas.poll()
        job.purgatory.quotas_changed(job.quotas.pin())

    edit(1.0)
    load.send_burst()
    load.steps(2)
    job.clock.advance(job.settings.stream.sensor_state_interval_ms)
    with armed(Pause("sensor_state.appended", 1, lambda: edit(0.5))):
        load.step()
    load.send_burst()
    load.step(job.settings.stream.sensor_state_interval_ms)
    load.come_to_rest()
    assert job.verdict({"levels": 4}).told() == []


def test_a_tenant_in_shadow_mode_keeps_no_full_bucket_of_a_member_in_a_snapshot(tmp_path: Path) -> None:
    job = started(tmp_path)
    terms = {**dict.fromkeys(RATES, 1.0), "mode": "shadow"}
    job.tenant_table.alter([TenantChange("team", terms, {"user_patterns": ["u"]})], AUDIT)
    use(job, 1_000)
    job.clock.advance(2_000)
    use(job, 1, "other")
    job.start()
    use(job, 1, "other")
    assert_equal_at_rest(job)
