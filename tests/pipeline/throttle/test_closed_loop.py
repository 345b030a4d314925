"""An offender that obeys throttles ends at its quota, and never gets far ahead of it."""

import pytest

from tests.pipeline.throttle.closed_loop import MOST_RECORDS_PER_MINUTE, OVERLOADS, Loop, Offender, offenders

# Hours and k. `python -m bench closed_loop` runs all for an hour, with k = 1.05, whose burst lasts four minutes.
RUNS = [
    pytest.param((0.12, (2.0, 50.0)), id="k = 2 and 50, 0.12 h"),
    pytest.param((0.12, OVERLOADS[1:4]), id="k = 1.2 to 2, 0.12 h", marks=pytest.mark.long),
]


@pytest.fixture(scope="module", params=RUNS)
def loop(request: pytest.FixtureRequest) -> Loop:
    hours, overloads = request.param
    loop = Loop([one for one in offenders() if one.overload in overloads])
    loop.run(hours)
    return loop


def test_the_mean_over_whole_throttle_cycles_is_the_quota_within_five_percent(loop: Loop) -> None:
    ratios = {_name(offender): offender.mean_ratio for offender in loop.offenders.values()}
    assert all(len(offender.cycles) > 5 for offender in loop.offenders.values())
    assert {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > 0.05} == {}


def test_no_offender_gets_more_records_than_it_can_use(loop: Loop) -> None:
    found = {_name(offender): offender.records_per_minute for offender in loop.offenders.values()}
    assert {name: per_minute for name, per_minute in found.items() if per_minute > MOST_RECORDS_PER_MINUTE} == {}


def test_at_every_instant_after_the_first_throttle_the_excess_is_bounded(loop: Loop) -> None:
    beyond = {
        _name(offender): (offender.excess_seconds, offender.allowed_excess_seconds)
        for offender in loop.offenders.values()
        if offender.excess_seconds > offender.allowed_excess_seconds
    }
    assert beyond == {}
    assert all(offender.excess_seconds > 0 for offender in loop.offenders.values()), "the bound was looked at"


def _name(offender: Offender) -> str:
    return f"k {offender.overload}, lag {offender.lag_ms} ms, cap {offender.cap}"
