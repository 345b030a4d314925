"""An offender that obeys throttles ends at its quota, and never gets far ahead of it."""

import pytest

from tests.pipeline.throttle.closed_loop import MOST_RECORDS_PER_MINUTE, OVERLOADS, Loop, Offender, offenders

# Hours and k. Those between, and k = 1.05, whose burst lasts four minutes, are for the long run.
RUNS = [
    pytest.param((0.12, (1.2, 1.5, 2.0, 50.0)), id="k = 1.2 to 2 and 50, 0.12 h"),
    pytest.param((0.25, OVERLOADS[4:]), id="from k = 5 on, 0.25 h", marks=pytest.mark.long),
    pytest.param((1.0, OVERLOADS), id="all, 1 h", marks=pytest.mark.long),
]


@pytest.fixture(scope="module", params=RUNS)
def loop(request: pytest.FixtureRequest) -> Loop:
    hours, overloads = request.param
    loop = Loop([one for one in offenders() if one.overload in overloads])
    loop.run(hours)
    return loop


def test_the_mean_over_whole_throttle_cycles_is_the_quota_within_five_percent(loop: Loop) -> None:
    ratios = {_name(offender): (offender.mean_ratio, _tolerance(offender)) for offender in loop.offenders.values()}
    assert all(len(offender.cycles) > 5 for offender in loop.offenders.values())
    assert {name: ratio for name, (ratio, most) in ratios.items() if abs(ratio - 1) > most} == {}


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


def test_without_the_debt_the_rate_alone_leaks() -> None:
    """By rate, 300 ms ahead, 200 ms to take effect, cap 1 s: 1.34 · T at k = 20 and 1.87 · T at k = 50.

    See docs/design.md, "Cap and debt".
    """
    big = [Offender(overload, 200, "1 s") for overload in (2.0, 20.0, 50.0)]
    loop = Loop(big, lead_ms=300, carry_debt=False)
    loop.run(0.025)
    ratios = {offender.overload: offender.mean_ratio for offender in loop.offenders.values()}
    assert ratios[2.0] < 1.1
    assert ratios[20.0] > 1.2
    assert ratios[50.0] > 1.5


def _tolerance(offender: Offender) -> float:
    """A little above T a cycle lasts minutes."""
    return 0.06 if offender.overload < 1.1 else 0.05


def _name(offender: Offender) -> str:
    return f"k {offender.overload}, lag {offender.lag_ms} ms, cap {offender.cap}"
