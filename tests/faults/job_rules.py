"""The verifier's rules for a job with given settings."""

from pipeline.settings.model import Settings
from tests.faults.rules import Rules


def rules_of(settings: Settings) -> Rules:
    """The rules for a job on real clocks, whose lead grows with the publish lag that it measures."""
    purgatory = settings.purgatory
    return Rules(
        min_hold_ms=purgatory.min_hold_ms,
        least_lead_ms=max(settings.stream.trigger_ms + purgatory.client_lag_ms, purgatory.min_renew_lead_ms),
        max_decision_age_ms=settings.stream.max_decision_age_ms,
        sensor_state_interval_ms=settings.stream.sensor_state_interval_ms,
        clock_tolerance_ms=settings.stream.clock_tolerance_ms,
    )
