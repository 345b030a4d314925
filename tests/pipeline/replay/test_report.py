"""What a replay is told as; budgets that it may break."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.replay.report import (
    METRICS,
    ClientComparison,
    FailCondition,
    Totals,
    compare,
    failures,
    throttled_clients,
    to_document,
    totals_of,
)
from pipeline.replay.usage_batches import HeldSpans, HeldTimes, Outcome, ReplayResult
from schemas.names import ClientKey
from schemas.throttle_record import Target

ALICE = ClientKey("", "alice", "etl")
BOB = ClientKey("", "bob", "")
CAROL = ClientKey("", "carol", "app")
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


def result(**outcomes: Outcome) -> ReplayResult:
    by_name = {"alice": ALICE, "bob": BOB, "carol": CAROL}
    return ReplayResult({by_name[name]: outcome for name, outcome in outcomes.items()})


def test_totals_add_up_and_changes_are_candidate_less_live() -> None:
    live = result(alice=Outcome(2, 3_000, 100), bob=Outcome(1, 1_000, 50), carol=NOTHING)
    candidate = result(alice=Outcome(5, 4_500, 130), bob=NOTHING, carol=Outcome(1, 250, 1))
    totals = totals_of(compare(live, live, candidate, {}))
    assert (totals.clients, totals.throttled, totals.newly_throttled, totals.no_longer_throttled) == (3, 2, 1, 1)
    assert (totals.windows_throttled, totals.throttle_seconds, totals.throttle_seconds_change) == (6, 4.75, 0.75)
    assert (totals.bytes_deferred, totals.bytes_deferred_change) == (131, -19)


def test_the_largest_change_comes_first() -> None:
    live = result(alice=Outcome(1, 100), bob=Outcome(9, 9_000), carol=NOTHING)
    candidate = result(alice=Outcome(1, 200), bob=Outcome(9, 9_000), carol=Outcome(1, 5_000))
    assert [line.client for line in compare(live, live, candidate, {})] == [CAROL, ALICE, BOB]


def test_clients_nobody_throttles_are_counted_and_not_listed() -> None:
    comparisons = compare(result(), result(alice=NOTHING, bob=NOTHING), result(alice=NOTHING, bob=Outcome(1, 1)), {})
    document = to_document(throttled_clients(comparisons), totals_of(comparisons), {})
    assert document["totals"]["clients"] == 2
    assert [row["user"] for row in document["clients"]] == ["bob"]


def test_a_client_that_only_happened_is_listed() -> None:
    comparisons = compare(result(), result(), result(), {CAROL: Outcome(4, 2_000)})
    assert [(line.client, line.happened.windows) for line in throttled_clients(comparisons)] == [(CAROL, 4)]


OUTCOMES = st.builds(Outcome, st.integers(0, 9), st.integers(0, 9_999), st.integers(0, 9_999))
RESULTS = st.builds(ReplayResult, st.dictionaries(st.sampled_from([ALICE, BOB, CAROL]), OUTCOMES))


@given(RESULTS)
def test_the_live_quotas_as_candidate_change_nothing(live: ReplayResult) -> None:
    comparisons = compare(live, live, live, {})
    totals = totals_of(comparisons)
    assert (totals.newly_throttled, totals.no_longer_throttled) == (0, 0)
    assert (totals.throttle_seconds_change, totals.bytes_deferred_change) == (0, 0)
    assert {line.change for line in comparisons} <= {"same"}


@given(RESULTS, RESULTS)
def test_exchanging_live_and_candidate_turns_every_change_round(one: ReplayResult, other: ReplayResult) -> None:
    there, back = (totals_of(compare(result(), *pair, {})) for pair in ((one, other), (other, one)))
    assert there.newly_throttled == back.no_longer_throttled
    assert there.throttle_seconds_change == -back.throttle_seconds_change


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
def test_throttled_time_is_what_the_records_say_within_the_range(
    records: list[tuple[int, int | None]], held_for_ms: int
) -> None:
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
def test_a_client_is_held_by_its_own_throttles_and_by_those_of_its_user_that_do_not_except_it(
    client: ClientKey, held: list[tuple[int, int]]
) -> None:
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


TOTALS = Totals(
    clients=10,
    throttled=4,
    newly_throttled=3,
    no_longer_throttled=1,
    windows_throttled=40,
    throttle_seconds=12.5,
    throttle_seconds_change=-2.5,
    bytes_deferred=7_000,
    bytes_deferred_change=500,
)


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("newly_throttled>2", True),
        ("newly_throttled>3", False),
        ("newly_throttled >= 3", True),
        ("newly_throttled<3", False),
        ("newly_throttled<=3", True),
        ("newly_throttled==3", True),
        ("newly_throttled!=3", False),
        (" throttle_seconds > 12.4 ", True),
        ("throttle_seconds_change<-2", True),
        ("bytes_deferred>1e4", False),
    ],
)
def test_a_comparison_that_holds_fails_the_budget(text: str, fails: bool) -> None:
    assert FailCondition.parse(text).is_met(TOTALS) is fails


@pytest.mark.parametrize(
    "text", ["", "newly_throttled", "newly_throttled>", ">3", "new>3", "newly_throttled=3", "newly_throttled>three"]
)
def test_anything_else_is_refused_with_the_metrics_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="metrics are clients, throttled, newly_throttled"):
        FailCondition.parse(text)


@pytest.mark.parametrize("metric", METRICS)
def test_every_total_can_be_asked_for(metric: str) -> None:
    budget = FailCondition.parse(f"{metric}>99999")
    assert not budget.is_met(TOTALS)
    assert budget.is_met(replace(TOTALS, **{metric: 100_000}))


def test_only_what_failed_is_told_with_its_value() -> None:
    budgets = [
        FailCondition.parse("newly_throttled>2"),
        FailCondition.parse("throttled>4"),
        FailCondition.parse("throttle_seconds>1"),
    ]
    assert failures(budgets, TOTALS) == [
        "newly_throttled>2: newly_throttled is 3",
        "throttle_seconds>1: throttle_seconds is 12.5",
    ]
