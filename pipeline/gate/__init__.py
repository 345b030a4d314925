"""The client side: follow the throttle topic and wait while throttled. A library, and an HTTP side-car.

`__all__` is what is supported.
"""

from pipeline.gate.follower import KafkaFollower
from pipeline.gate.gate import Gate, GateStats, GateTimeout, Passage, Throttled
from pipeline.gate.waiting_room import GateDepleted, GateLimits, Lease, RequestSizeRefused

__all__ = [
    "Gate",
    "GateDepleted",
    "GateLimits",
    "GateStats",
    "GateTimeout",
    "KafkaFollower",
    "Lease",
    "Passage",
    "RequestSizeRefused",
    "Throttled",
]
