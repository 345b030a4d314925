"""The life of a throttle at its boundaries: below, equal, above, capped, zero."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.throttle.lifecycle import CheckResult, Running, check, check_after_edit, violations_to_publish
from pipeline.throttle.shapes import Publication, publication_of
from quota.throttle_time import Slicing, ThrottleCaps
from tests.pipeline.throttle.factories import due, publications, reason, reasons, violation

SLICING = Slicing(
    lead_ms=300,
    min_hold_ms=1_000,
    caps=ThrottleCaps(producer_byte_rate=1_000, consumer_byte_rate="window", request_percentage="none"),
    sample_window_ms=1_000,
)


def told(violated: Publication, running_until_ms: int | None, now_ms: int = 5_000) -> list[Publication]:
    """What a client hears of a violation; its running throttle was begun by the decision "began it"."""
    is_held = running_until_ms is not None
    running = Running(np.array([is_held]), np.array([running_until_ms or 0]), pa.array(["began it"]))
    rows = violations_to_publish(publications(violated), running, now_ms, SLICING).to_pylist()
    return [publication_of(row) for row in rows]


def told_by(verdict: CheckResult) -> list[Publication]:
    return [publication_of(row) for row in verdict.publications.to_pylist()]


@pytest.mark.parametrize(
    ("throttle_time_ms", "is_news"),
    [(0, False), (4_999, False), (5_999, False), (6_000, True), (60_000, True)],
    ids=["nothing", "ends sooner", "later by 1 ms less", "later by exactly a second", "much later"],
)
def test_a_held_client_hears_of_a_violation_only_if_it_ends_clearly_later(throttle_time_ms: int, is_news: bool) -> None:
    assert bool(told(violation(throttle_time_ms=throttle_time_ms), 10_000)) is is_news


@pytest.mark.parametrize(
    ("later_by_ms", "is_news"),
    [(2_999, False), (3_000, True)],
    ids=["below", "exactly a tenth of the slice"],
)
def test_a_long_extension_must_end_later_by_a_tenth_of_its_length(later_by_ms: int, is_news: bool) -> None:
    assert bool(told(violation(throttle_time_ms=30_000), 35_000 - later_by_ms)) is is_news


def test_an_extension_keeps_the_decision_that_began_the_throttle() -> None:
    [news] = told(violation(throttle_time_ms=9_000, decision_id="new"), 10_000)
    assert (news.decision_id, news.cause, news.throttle_time_ms) == ("began it", "violation", 9_000)
    assert news.extends


@pytest.mark.parametrize(
    ("throttle_time_ms", "owed_ms", "told_ms"),
    [(999, 999, []), (1_000, 1_000, [1_000]), (3, 1_700, [1_700]), (10_000, 90_000, [10_000])],
    ids=["too short", "a second", "its bucket owes more", "capped"],
)
def test_a_violation_holds_for_the_larger_of_x_and_what_is_owed(
    throttle_time_ms: int, owed_ms: int, told_ms: list[int]
) -> None:
    about = reason(owed_ms=owed_ms, quota_type="consumer_byte_rate")
    published = told(violation(throttle_time_ms=throttle_time_ms, reason=about), None)
    assert [one.throttle_time_ms for one in published] == told_ms
    assert not any(one.extends for one in published)


def test_of_several_clients_each_hears_what_is_new_to_it() -> None:
    asked = [violation(throttle_time_ms=9_000, decision_id=name) for name in ("not held", "longer", "the same")]
    running = Running(np.array([False, True, True]), np.array([0, 10_000, 14_000]), pa.array(["", "began it", "first"]))
    rows = violations_to_publish(publications(*asked), running, 5_000, SLICING).to_pylist()
    assert [(row["decision_id"], row["extends"]) for row in rows] == [("not held", False), ("began it", True)]


@pytest.mark.parametrize(
    ("owed_ms", "renewed_ms"),
    [(0, None), (300, None), (1_299, None), (1_300, 1_000), (50_000, 1_000)],
    ids=["nothing owed", "what is left", "1 ms less", "exactly a second longer", "capped"],
)
def test_a_look_renews_what_owes_longer_than_is_left(owed_ms: int, renewed_ms: int | None) -> None:
    verdict = check(due(popped_ms=9_700), reasons(reason(owed_ms=owed_ms)), 9_700, SLICING)
    assert [p.throttle_time_ms for p in told_by(verdict)] == ([] if renewed_ms is None else [renewed_ms])
    assert verdict.waiting.tolist() == ([0] if renewed_ms is None else [])


@pytest.mark.parametrize(
    ("quota_type", "lead_ms", "expected_ms"),
    [
        ("producer_byte_rate", 300, 1_000),
        ("producer_byte_rate", 400, 1_200),
        ("consumer_byte_rate", 300, 10_000),
        ("request_percentage", 300, 90_000),
    ],
    ids=["cap", "three leads are the floor of a cap", "window", "no cap"],
)
def test_a_renewal_is_as_long_as_its_cap_allows(quota_type: str, lead_ms: int, expected_ms: int) -> None:
    slicing = replace(SLICING, lead_ms=lead_ms)
    owes = reasons(reason(owed_ms=90_000, quota_type=quota_type))
    [renewal] = told_by(check(due(popped_ms=9_700), owes, 9_700, slicing))
    assert renewal.throttle_time_ms == expected_ms


def test_a_look_reports_how_late_the_wheel_handed_it_out() -> None:
    [renewal] = told_by(check(due(popped_ms=9_712), reasons(reason(owed_ms=5_000)), 9_760, SLICING))
    assert (renewal.due_ms, renewal.lateness_ms) == (9_700, 12)


def test_a_throttle_that_ends_is_released_with_its_decision() -> None:
    ended = due(popped_ms=10_003, due_ms=10_000, decision_id="began it")
    [release] = told_by(check(ended, reasons(reason(owed_ms=0)), 10_003, SLICING))
    assert (release.action, release.cause, release.decision_id, release.lateness_ms) == (
        "release",
        "expired",
        "began it",
        3,
    )


@pytest.mark.parametrize(
    ("owed_ms", "expected"),
    [(0, ("release", 0)), (1_000, ("release", 0)), (1_001, ("throttle", 1_000)), (50_000, ("throttle", 1_000))],
    ids=["nothing owed", "exactly min_hold_ms", "1 ms more", "capped"],
)
def test_an_end_is_looked_at_too(owed_ms: int, expected: tuple[str, int]) -> None:
    ended = due(popped_ms=10_000, due_ms=10_000)
    [record] = told_by(check(ended, reasons(reason(owed_ms=owed_ms)), 10_000, SLICING))
    assert (record.action, record.throttle_time_ms) == expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"owed_ms": 0, "bound": None, "level": None}, ("release", 0)),
        ({"owed_ms": 0, "bound": 9_000.0}, ("release", 0)),
        ({"owed_ms": 400, "bound": 1_500.0}, ("release", 0)),
        ({"owed_ms": 4_000, "bound": 1_500.0, "quota_type": "request_percentage"}, ("throttle", 4_000)),
        ({"owed_ms": 4_001, "bound": 1_001.0}, None),
        ({"owed_ms": 5_000, "bound": 1_001.0}, None),
        ({"owed_ms": 5_999, "bound": 900.0}, None),
        ({"owed_ms": 6_000, "bound": 900.0}, ("throttle", 1_000)),
        ({"owed_ms": 10, "bound": 900.0}, None),
    ],
    ids=[
        "no bound left: released",
        "raised, nothing owed: released",
        "raised, less than min_hold_ms owed: released",
        "raised, less owed: shortened to it",
        "raised, shorter by 1 ms less than min_hold_ms: left",
        "raised, the same owed: left",
        "lowered, more owed by less than min_hold_ms: left",
        "lowered, more owed: renewed, capped",
        "lowered, less owed: never shortened",
    ],
)
def test_an_edit_releases_shortens_or_prolongs(after: dict[str, Any], expected: tuple[str, int] | None) -> None:
    verdict = check_after_edit(due(), reasons(reason(**after)), 5_000, SLICING)
    assert [(p.action, p.throttle_time_ms) for p in told_by(verdict)] == ([] if expected is None else [expected])
    assert all(p.cause == "quota_changed" for p in told_by(verdict))
    assert verdict.waiting.tolist() == ([0] if expected is None else [])
