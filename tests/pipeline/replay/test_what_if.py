import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.errors import NotFound, UsageError
from pipeline.replay.report import compare, totals_of
from pipeline.replay.request import ReplayRequest, Timeline, live_timeline
from pipeline.replay.run import run
from pipeline.replay.usage_batches import ReplayResult, Source, recorded_outcomes
from pipeline.settings.model import EngineSettings, Settings
from pipeline.tables.address import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from quota.snapshot import QuotaSnapshot
from schemas.arrow import conform
from schemas.names import ClientKey
from schemas.usage import UsageBySecondRow
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import quota_row, usage_row

QUOTAS = (
    QuotaChange("alice", "", {"producer_byte_rate": 20_000.0}),
    QuotaChange("<default>", "<default>", {"producer_byte_rate": 40_000.0, "consumer_byte_rate": 9_000.0}),
)
CLIENTS = (("alice", "etl"), ("alice", "app"), ("bob", "etl"), ("carol", ""))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> KeptJob:
    """Five minutes of four clients, one batch a second, the quotas edited in mid-way; rolled up by the second."""
    draw = random.Random(3)
    job = KeptJob(str(tmp_path_factory.mktemp("tables")), *QUOTAS)
    for second in range(300):
        job.clock.advance(1_000)
        if second == 150:
            job.edit(QuotaChange("bob", "", {"producer_byte_rate": 5_000.0}))
        rows = [
            usage_row(
                job.clock.wall_ms + draw.randrange(1_000),
                user=user,
                client_id=client_id,
                produced_bytes=draw.choice((None, 0, 9_000, 60_000)),
                fetched_bytes=draw.choice((None, 0, 20_000)),
            )
            for user, client_id in CLIENTS
            if draw.random() < 0.6
        ]
        job.decided += job.batch(rows)
    job.flush()
    roll_up(job.root)
    return job


def roll_up(root: str) -> None:
    rows = DeltaTable(table_uri(root, "usage")).to_pyarrow_table()
    rows = rows.append_column("second_start_ms", rows["sample_start_ms"]).drop_columns(["date", "sample_start"])
    write_deltalake(table_uri(root, "usage_by_second"), conform(rows, UsageBySecondRow), mode="append")


def request(job: KeptJob, source: Source = "usage", *quotas: Timeline, **changes: Any) -> ReplayRequest:
    """The whole of a job, with the quotas that were live if no others are given."""
    timelines = quotas or (live_timeline(job.quota_table, job.quotas, 0),)
    ends = {"since_ms": job.clock.wall_ms - 299_000, "until_ms": job.clock.wall_ms + 1_000}
    engine = changes.pop("settings", EngineSettings())
    about = {"root": job.root, "source": source, "scope": "cluster", "settings": Settings(engine=engine)}
    return ReplayRequest(**{**about, **ends, "quotas": timelines, **changes})


def always(snapshot: QuotaSnapshot) -> Timeline:
    return Timeline((0,), (snapshot,))


def replayed(wanted: ReplayRequest) -> list[ReplayResult]:
    return run(wanted, lambda done, whole: None)


def windows(result: ReplayResult) -> dict[Any, int]:
    return {client: outcome.windows for client, outcome in result.outcomes.items() if outcome.windows}


def test_the_live_quotas_over_the_exact_batches_come_to_what_was_decided(job: KeptJob) -> None:
    wanted = request(job)
    (live,) = replayed(wanted)
    decided = recorded_outcomes(wanted)
    assert windows(live) == {client: outcome.windows for client, outcome in decided.items() if outcome.windows}
    assert windows(live) != {}
    assert live.evaluations == len(
        set(DeltaTable(table_uri(job.root, "usage")).to_pyarrow_table()["batch_id"].to_pylist())
    )


def test_the_quotas_that_held_all_along_change_nothing_as_a_candidate(job: KeptJob) -> None:
    timelines = live_timeline(job.quota_table, job.quotas, 0), always(job.quotas.at(2))
    live, candidate = replayed(request(job, "usage", *timelines, until_ms=job.clock.wall_ms - 151_000))
    totals = totals_of(compare(live, live, candidate, {}))
    assert totals.throttled > 0
    assert (totals.newly_throttled, totals.no_longer_throttled) == (0, 0)
    assert (totals.throttle_seconds_change, totals.bytes_deferred_change) == (0, 0)


def test_an_edit_in_mid_way_is_seen_by_the_live_replay_alone(job: KeptJob) -> None:
    timelines = live_timeline(job.quota_table, job.quotas, 0), always(job.quotas.at(2))
    live, candidate = replayed(request(job, "usage", *timelines))
    changed = {line.client: line.change for line in compare(live, live, candidate, {}) if line.change != "same"}
    assert set(changed) == {("", "bob", "etl")}


def test_seconds_come_to_the_same_as_batches_of_a_second(job: KeptJob) -> None:
    sources: tuple[Source, ...] = ("usage", "usage_by_second")
    ((exact,), (by_second,)) = (replayed(request(job, source, always(job.quotas.at(2)))) for source in sources)
    assert by_second.outcomes == exact.outcomes


def test_a_range_in_the_middle_is_warm_when_it_begins(job: KeptJob) -> None:
    middle_ms = job.clock.wall_ms - 150_000
    timeline = always(job.quotas.at(2))
    (part,) = replayed(request(job, "usage", timeline, since_ms=middle_ms))
    (decided,) = replayed(request(job, "usage", timeline, until_ms=middle_ms))
    (whole,) = replayed(request(job, "usage", timeline))
    assert {client: count + windows(decided).get(client, 0) for client, count in windows(part).items()} == windows(
        whole
    )


def test_the_numbers_of_a_single_throttle_can_be_counted_by_hand(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("u", "", {"producer_byte_rate": 1_000.0}))
    start_ms = job.clock.wall_ms
    # 20 000 bytes over W = 10 s: O = 2 000, X = 10 s. Of what follows, 300 and 400 lie in the hold, 500 does not.
    for at_ms, used_bytes in ((0, 20_000), (4_000, 300), (9_999, 400), (30_000, 500)):
        job.batch([usage_row(start_ms + at_ms, produced_bytes=used_bytes)])
    job.flush()
    (found,) = replayed(request(job, since_ms=start_ms, until_ms=start_ms + 60_000))
    assert found.outcomes[ClientKey("", "u", "c")].deferred_bytes == 700
    assert found.outcomes[ClientKey("", "u", "c")].windows == 3


@pytest.mark.parametrize(("since_ms", "until_ms"), [(1_000, 2_000), (2_000, 2_000), (10**9, 1_000)])
def test_what_nobody_used_is_nothing_kept(job: KeptJob, since_ms: int, until_ms: int) -> None:
    with pytest.raises(NotFound):
        replayed(request(job, since_ms=since_ms, until_ms=until_ms))


def test_seconds_can_not_fill_shorter_windows(job: KeptJob) -> None:
    with pytest.raises(UsageError, match="cannot replay sample windows of 500 ms"):
        replayed(request(job, "usage_by_second", settings=EngineSettings(sample_window_ms=500)))


def test_longer_windows_are_filled_by_their_seconds(job: KeptJob) -> None:
    settings = EngineSettings(sample_window_ms=3_000)
    (found,) = replayed(request(job, "usage_by_second", always(job.quotas.at(2)), settings=settings))
    assert windows(found) != {}


@pytest.mark.parametrize(("at_ms", "version"), [(0, 1), (99, 1), (100, 1), (199, 1), (200, 2), (10**9, 2)])
def test_the_quotas_of_an_instant_are_the_newest_before_it(at_ms: int, version: int) -> None:
    snapshots = tuple(QuotaSnapshot.from_rows([quota_row(producer_byte_rate=1.0)], number) for number in (1, 2))
    assert Timeline((100, 200), snapshots).at(at_ms).version == version


@pytest.mark.parametrize(
    ("used", "left"),
    [((), [1, 2, 3, 5]), ((3,), [3, 5]), ((2, 3), [2, 3, 5]), ((4,), [3, 5]), ((1, 5), [1, 5]), ((7,), [5])],
)
def test_quotas_that_no_batch_was_decided_with_are_left_out(used: tuple[int, ...], left: list[int]) -> None:
    whole = Timeline((0, 10, 20, 30), tuple(QuotaSnapshot(version, ()) for version in (1, 2, 3, 5)))
    timeline = whole.of_versions(used)
    assert [snapshot.version for snapshot in timeline.snapshots] == left
    assert all(timeline.version(version) is whole.version(version) for version in used)
