"""What-if: replays of a job that is kept in tables, the range that they are about, and what is compared."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.errors import NotFound, UsageError
from pipeline.replay.request import Coverage, ReplayRequest, Timeline, live_timeline, slice_length_ms
from pipeline.replay.usage_batches import HeldSpans, HeldTimes, Outcome, ReplayResult, Source, recorded_outcomes
from pipeline.replay.what_if import (
    ClientComparison,
    FailCondition,
    compare,
    failures,
    run,
    throttled_clients,
    to_document,
    totals_of,
)
from pipeline.settings.model import EngineSettings, Settings
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from quota.snapshot import QuotaSnapshot
from schemas.arrow import arrow_schema
from schemas.names import ClientKey
from schemas.rows import TenantRow
from schemas.throttle_record import Target
from tests.pipeline.replay.conftest import EDITS, TRIGGER_MS
from tests.pipeline.replay.kept import KeptJob, roll_up
from tests.pipeline.tables.factories import AUDIT, bound, tenant, tenant_table
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
    usage = DeltaTable(table_uri(job.root, "usage")).to_pyarrow_table()
    assert live.evaluations == len(usage["batch_id"].unique())


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


def test_seconds_fill_longer_windows_and_no_shorter_ones(job: KeptJob) -> None:
    longer = EngineSettings(sample_window_ms=3_000)
    (found,) = replayed(request(job, "usage_by_second", always(job.quotas.at(2)), settings=longer))
    assert windows(found) != {}
    with pytest.raises(UsageError, match="cannot replay sample windows of 500 ms"):
        replayed(request(job, "usage_by_second", settings=EngineSettings(sample_window_ms=500)))


@pytest.mark.parametrize(("at_ms", "version"), [(0, 1), (99, 1), (100, 1), (199, 1), (200, 2), (10**9, 2)])
def test_the_quotas_of_an_instant_are_the_newest_before_it(at_ms: int, version: int) -> None:
    snapshots = tuple(QuotaSnapshot.from_rows([quota_row(producer_byte_rate=1.0)], number) for number in (1, 2))
    assert Timeline((100, 200), snapshots).at(at_ms).version == version


def test_edits_of_quotas_and_tenants_come_into_force_one_after_the_other(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), *QUOTAS)
    first = job.quotas.pin()
    tenants = tenant_table(job.root)
    (middle, last) = (
        job.quotas.at(first.version, tenants.commit(lambda _: [tenant("a", 1.0)], AUDIT).version),
        job.quotas.at(job.quota_table.alter([QUOTAS[0], bound("bob", 2.0)], AUDIT), tenants.version()),
    )
    twice = pa.Table.from_pylist([tenant("b", 2.0, user_patterns=("a-*",))], arrow_schema(TenantRow))
    write_deltalake(tenants.uri, twice, mode="append")
    live = live_timeline(job.quota_table, job.quotas, 0)
    assert live.snapshots[-3:] == (first, middle, last)
    assert [len(one.tenants) for one in live.snapshots[-3:]] == [0, 1, 1]
    assert [live.of(one.versions) for one in (first, middle, last)] == [first, middle, last]
    assert live.of((last.version, tenants.version())) == last, "that version was never in force"
    assert live.at(live.from_ms[-1]) == last
    assert live.of_versions([middle.versions]).snapshots == (middle, last)
    after = live_timeline(job.quota_table, job.quotas, live.from_ms[-1])
    assert after.snapshots[-1] == last
    assert first.versions not in {one.versions for one in after.snapshots}


ALICE = ClientKey("", "alice", "etl")
BOB, CAROL, DAVE, ERIN = (ClientKey("", user, "") for user in ("bob", "carol", "dave", "erin"))
NOTHING = Outcome()


@pytest.mark.parametrize(
    ("live", "candidate", "change"),
    [
        (NOTHING, NOTHING, "same"),
        (NOTHING, Outcome(1, 500), "newly throttled"),
        (Outcome(1, 500), NOTHING, "no longer throttled"),
        (Outcome(3, 500), Outcome(9, 500), "same"),
        (Outcome(3, 500), Outcome(3, 501), "longer"),
        (Outcome(3, 500), Outcome(3, 499), "shorter"),
        (NOTHING, Outcome(1, 0), "newly throttled"),
    ],
)
def test_a_change_is_seen_from_the_live_quotas(live: Outcome, candidate: Outcome, change: str) -> None:
    assert ClientComparison(ALICE, NOTHING, NOTHING, live, candidate).change == change


LIVE = ReplayResult({ALICE: Outcome(2, 3_000, 100), BOB: Outcome(1, 1_000, 50), CAROL: NOTHING, ERIN: NOTHING})
CANDIDATE = ReplayResult({ALICE: Outcome(5, 4_500, 130), BOB: NOTHING, CAROL: Outcome(1, 250, 1), ERIN: NOTHING})
LINES = compare(LIVE, LIVE, CANDIDATE, {DAVE: Outcome(4, 2_000)})
TOTALS = totals_of(LINES)


def test_totals_add_up_and_changes_are_candidate_less_live() -> None:
    assert (TOTALS.clients, TOTALS.throttled, TOTALS.newly_throttled, TOTALS.no_longer_throttled) == (5, 2, 1, 1)
    assert (TOTALS.windows_throttled, TOTALS.throttle_seconds, TOTALS.throttle_seconds_change) == (6, 4.75, 0.75)
    assert (TOTALS.bytes_deferred, TOTALS.bytes_deferred_change) == (131, -19)


def test_the_largest_change_comes_first_and_who_is_never_throttled_is_only_counted() -> None:
    document = to_document(throttled_clients(LINES), TOTALS, {})
    assert [row["user"] for row in document["clients"]] == ["alice", "bob", "carol", "dave"]
    assert document["totals"]["clients"] == 5


ETL = Target("", "alice", "etl", None)


@pytest.mark.parametrize(
    ("records", "held_for_ms"),
    [
        # (written at, throttle time); None is a release.
        ([], 0),
        ([(0, 1_000)], 1_000),
        ([(0, 1_000), (1_000, None)], 1_000),
        ([(0, 1_000), (400, None)], 400),
        ([(0, 1_000), (1_500, None)], 1_000),
        ([(0, 1_000), (700, 1_000)], 1_700),
        ([(0, 5_000), (700, 300)], 1_000),
        ([(0, 100), (700, 300)], 400),
        ([(0, 1_000), (400, None), (400, 50)], 450),
        ([(-500, 800)], 300),
        ([(9_500, 800)], 500),
    ],
)
def test_throttled_time_is_that_of_its_records(records: list[tuple[int, int | None]], held_for_ms: int) -> None:
    holds = HeldSpans()
    for at_ms, throttle_time_ms in records:
        holds.hear(ETL, at_ms, throttle_time_ms)
    assert HeldTimes(holds, 0, 10_000).ms_of(ALICE) == held_for_ms


@pytest.mark.parametrize(
    ("client", "held"),
    [
        (ClientKey("", "alice", "app"), [(0, 300)]),  # for two types at once
        (ClientKey("", "alice", ""), [(0, 300)]),
        # An exception of one type until an edit; and its own throttle.
        (ClientKey("", "alice", "etl"), [(140, 145), (150, 310)]),
        (ClientKey("", "bob", "etl"), []),
        (ClientKey("1", "alice", "app"), []),
    ],
)
def test_a_client_is_held_by_its_own_throttles_and_its_users(client: ClientKey, held: list[tuple[int, int]]) -> None:
    by_rate, by_time = (Target("", "alice", None, name) for name in ("producer_byte_rate", "request_percentage"))
    holds = HeldSpans()
    holds.hear(by_rate, 0, 250, ("etl",))
    holds.hear(by_rate, 200, 100)
    holds.hear(by_time, 150, 150)
    holds.hear(ETL, 140, 5)
    holds.hear(ETL, 290, 20)
    assert HeldTimes(holds, 0, 1_000).of(client) == held


@pytest.mark.parametrize(
    ("happened_ms", "again_ms", "off_percent", "is_off"),
    [
        (0, 0, 0.0, False),
        (1_000, 950, 5.0, False),
        (1_000, 949, 5.1, True),
        (950, 1_000, 5.0, False),
        (1, 8_400, 99.98809523809524, True),
    ],
)
def test_above_five_percent_a_replay_is_off(happened_ms: int, again_ms: int, off_percent: float, is_off: bool) -> None:
    one = ClientComparison(ALICE, Outcome(1, happened_ms), Outcome(1, again_ms), NOTHING, NOTHING)
    assert one.off_percent == pytest.approx(off_percent)
    assert one.is_off is is_off


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("newly_throttled>0", True),
        ("newly_throttled>1", False),
        ("newly_throttled >= 1", True),
        ("newly_throttled<1", False),
        ("newly_throttled<=1", True),
        ("newly_throttled==1", True),
        ("newly_throttled!=1", False),
        (" throttle_seconds > 4.7 ", True),
        ("bytes_deferred_change<-18", True),
        ("bytes_deferred>1e4", False),
    ],
)
def test_a_comparison_that_holds_fails_the_budget(text: str, fails: bool) -> None:
    assert bool(failures([FailCondition.parse("throttled>4"), FailCondition.parse(text)], TOTALS)) is fails


@pytest.mark.parametrize(
    "text", ["", "newly_throttled", "newly_throttled>", ">3", "new>3", "clients=3", "clients>three"]
)
def test_anything_else_is_refused_with_the_metrics_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="metrics are clients, throttled, newly_throttled"):
        FailCondition.parse(text)


# The range a report is about: what the tables have usage for.


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


# A range that is read in slices gives what it gives in one piece.


def facts(request: ReplayRequest, slice_ms: int) -> list[object]:
    """All there is of its replays, to be compared."""
    results = run(request, lambda done, whole: None, slice_ms)
    return [(one.outcomes, one.evaluations, one.rows) for one in results]


@pytest.mark.parametrize("source", ["usage_by_second", "usage"])
@settings(max_examples=3, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # it shrinks to nothing smaller
@given(
    slice_ms=st.integers(2_500, 90_000),
    ago_ms=st.integers(200_000, 1_000_000),
    length_ms=st.integers(20_000, 120_000),
    num_samples=st.sampled_from([2, 4]),
)
def test_a_range_in_any_slices_comes_to_what_one_slice_comes_to(
    source: Source, kept: KeptJob, slice_ms: int, ago_ms: int, length_ms: int, num_samples: int
) -> None:
    begun_ms, since_ms = kept.clock.wall_ms - 300 * TRIGGER_MS, kept.clock.wall_ms - ago_ms
    snapshots = tuple(kept.quotas.at(version) for version in range(2, 3 + len(EDITS)))
    live = Timeline(tuple(begun_ms + 40 * TRIGGER_MS * place for place in range(len(snapshots))), snapshots)
    engine = Settings(engine=EngineSettings(num_samples=num_samples))
    timelines = live, Timeline((0,), snapshots[:1])
    request = ReplayRequest(kept.root, source, "cluster", engine, since_ms, since_ms + length_ms, timelines)
    assert facts(request, slice_ms) == facts(request, 10**9)


@pytest.mark.parametrize(
    ("hours", "clients", "longest_ms"),
    [(24, 1_000, 1_200_000), (24, 10, 3_600_000), (1, 1_000, 180_000), (1, 100_000, 60_000)],
)
def test_slices_are_as_long_as_memory_and_a_progress_bar_allow(hours: int, clients: int, longest_ms: int) -> None:
    assert slice_length_ms(hours * 3_600_000, hours * 3_600 * clients) == pytest.approx(longest_ms, rel=0.01)
