"""An offender that obeys throttles ends at its quota, and never gets far ahead of it."""

import pytest

from bench import tenants
from bench.closed_loop import MOST_RECORDS_PER_MINUTE, Loop, Offender, offenders


def test_an_offender_ends_at_its_quota_with_a_bounded_excess_and_few_records() -> None:
    # `python -m bench closed_loop` runs all for an hour, with k = 1.05, whose burst lasts four minutes.
    loop = Loop([one for one in offenders() if one.overload in {1.2, 2.0, 50.0}])
    loop.run(0.12)
    for one in loop.offenders.values():
        assert len(one.cycles) > 5, one
        assert one.mean_ratio == pytest.approx(1, abs=0.05), one
        assert one.records_per_minute <= MOST_RECORDS_PER_MINUTE, one
        assert 0 < one.excess_seconds <= one.allowed_excess_seconds, one


def test_clients_of_a_broker_that_is_behind_end_at_their_quota_too() -> None:
    """One client of another broker that is not behind keeps event time going."""
    behind = [Offender(k, 500, "window", late_ms) for late_ms in (5_000, 60_000) for k in (0.95, 1.5, 5.0, 20.0)]
    late = Loop([Offender(0.95, 500, "1 s"), *behind])
    late.run(0.15)
    for one in late.offenders.values():
        late_seconds = one.late_ms / 1_000 + 1
        if one.overload < 1:
            assert one.records == 0, one
            continue
        assert one.records_per_minute <= MOST_RECORDS_PER_MINUTE, one
        assert one.overload < 5 or (one.first_throttle_ms or 10**9) <= one.late_ms + 15_000, one
        if (one.overload - 1) * late_seconds <= 100:
            # What was on its way when the hold began arrives during it, and makes it a little longer than it should be.
            assert 0.9 <= one.mean_ratio <= 1.05, one
        else:  # far above its quota it gets what its debt forgets
            assert 0.95 <= one.mean_ratio <= 1.05 * late_seconds * one.overload / (109 + late_seconds), one


def test_members_of_a_tenant_get_their_shares_of_what_it_has() -> None:
    """From a minute after the last change of their demand on, within 5 %; `python -m bench tenants` has the table."""
    loop = tenants.TenantLoop()
    loop.run_seconds(tenants.SECONDS)
    for case in tenants.CASES:
        members = loop.cases[case.name]
        for first, end, shares in case.spans:
            together = tenants.share_of(members, first, end)
            assert not case.is_full or together == pytest.approx(1, abs=0.05), case.name
            for member, share in zip(members, shares or (), strict=shares is not None):
                assert member.mean(first, end) == pytest.approx(share, rel=0.05), (case.name, member.user)
        for first, end, most in case.at_most:
            assert tenants.share_of(members, first, end) <= most, (case.name, first)
        assert all(member.records_per_minute <= MOST_RECORDS_PER_MINUTE for member in members), case.name


@pytest.mark.long
def test_what_a_tenant_gives_out_in_an_hour_is_its_bound() -> None:
    loop = tenants.TenantLoop(tuple(case for case in tenants.CASES if case.is_full))
    loop.run_seconds(3_600)
    for name, members in loop.cases.items():
        assert tenants.share_of(members, 360, 3_600) == pytest.approx(1, abs=0.02), name
        assert all(member.records_per_minute <= MOST_RECORDS_PER_MINUTE for member in members), name
