"""A record of the throttle topic in one line, in the words of the job's own lines."""

from pipeline.throttle.held import Publication, Reason
from pipeline.throttle.log_line import line_with_command
from pipeline.throttle.outbox import Written
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord


def line_of_record(record: ThrottleRecord, extends: bool) -> str:
    """What happened, to whom, why and until when, and the command that tells more. The record does not tell the level.

    Args:
        record: As read from the topic.
        extends: Whether it makes a running throttle longer.
    """
    sensor_user, sensor_client_id = record.sensor
    reason = Reason(
        quota_type=record.quota_type,
        sensor_user=sensor_user,
        sensor_client_id=sensor_client_id,
        observed=record.observed,
        bound=record.bound,
        window_ms=record.window_ms,
        tokens=record.tokens,
        owed_ms=record.owed_ms,
        level=None,
    )
    publication = Publication(
        key=ClientKey(record.broker_id, record.user, record.client_id),
        action=record.action,
        cause=record.cause,
        throttle_time_ms=record.throttle_time_ms,
        reason=reason,
        decision_id=record.decision_id,
        extends=extends,
    )
    return line_with_command(Written(publication, record.publish_seq, record.throttled_until_ms), record.quota_version)
