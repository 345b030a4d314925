"""A record that is about to be written, and why: one at a time, as logs tell them.

Decisions and looks go by columns (`pipeline.throttle.publications`).
"""

from dataclasses import dataclass

from schemas.names import ClientKey
from schemas.throttle_record import Action, Cause


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a client must wait: the row of the quota type that asks for the longest wait.

    Attributes:
        quota_type: The quota type whose sensor is violated, or whose bucket owes most.
        sensor_user: User part of the sensor, "" where the sensor has none.
        sensor_client_id: Client-id part of the sensor, "" where the sensor has none.
        observed: O, per second (bytes, or percent of one thread).
        bound: T, per second. None once no enforced quota applies any more.
        window_ms: W, the span O was measured over.
        tokens: What the sensor's token bucket holds (negative: debt), None without debt carrying.
        owed_ms: How much longer the client must wait, seen now; at least 0.
        level: The quota level 1-8 that matched.
    """

    quota_type: str
    sensor_user: str
    sensor_client_id: str
    observed: float
    bound: float | None
    window_ms: int
    tokens: float | None
    owed_ms: int
    level: int | None


@dataclass(frozen=True, slots=True)
class Publication:
    """A record that is about to be written to the outbox; it gets its `publish_seq` there.

    Attributes:
        key: Who.
        action: throttle or release.
        cause: What led to it.
        throttle_time_ms: Length of this slice, counted from the moment it is written; 0 for a release.
        reason: Figures that explain it, seen at the evaluation that led to it.
        decision_id: The decision that began this throttle; kept by its renewals and its release.
        due_ms: Steady time at which the wheel should have handed it out; None for a batch's record.
        lateness_ms: How much later it did; None for a batch's record.
        extends: Whether a violation makes a running throttle longer, under the id of the decision that began it.
    """

    key: ClientKey
    action: Action
    cause: Cause
    throttle_time_ms: int
    reason: Reason
    decision_id: str
    due_ms: int | None = None
    lateness_ms: int | None = None
    extends: bool = False
