"""The lead of a check follows what publishing really takes."""

import pytest

from pipeline.throttle.purgatory import RenewLead


@pytest.mark.parametrize(
    ("trigger_ms", "client_lag_ms", "expected_ms"),
    [(250, 500, 750), (100, 199, 300), (100, 200, 300), (100, 201, 301), (50, 0, 300)],
    ids=["above the floor", "below", "equal", "just above", "far below"],
)
def test_before_anything_is_measured_the_lead_is_trigger_and_client_lag(
    trigger_ms: int, client_lag_ms: int, expected_ms: int
) -> None:
    assert RenewLead(trigger_ms, client_lag_ms, 300).lead_ms == expected_ms


def test_the_measured_p99_of_publishing_is_added() -> None:
    lead = RenewLead(250, 500, 300)
    for publish_lag_ms in [10] * 310 + [90] * 10:
        lead.observe(publish_lag_ms)
    assert lead.lead_ms == 250 + 500 + 90


def test_one_outlier_in_a_hundred_does_not_move_the_lead() -> None:
    lead = RenewLead(250, 500, 300)
    for publish_lag_ms in [*([10] * 511), 5_000]:
        lead.observe(publish_lag_ms)
    assert lead.lead_ms == 760


def test_old_measurements_are_forgotten() -> None:
    lead = RenewLead(250, 500, 300)
    for publish_lag_ms in [2_000] * 64 + [10] * 512:
        lead.observe(publish_lag_ms)
    assert lead.lead_ms == 760
