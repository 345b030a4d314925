"""The client side: follow the throttle topic and wait while throttled. A library, and an HTTP side-car.

`__all__` is what is supported. A module is loaded when one of its names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.gate.follower import KafkaFollower
    from pipeline.gate.gate import Gate, GateStats, GateTimeout, Passage, TaskPassage, Throttled
    from pipeline.gate.throttle_state import Lease, ThrottleView
    from pipeline.gate.waiting_room import GateDepleted, GateLimits, RequestSizeRefused

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
    "TaskPassage",
    "ThrottleView",
    "Throttled",
]

_MODULES = {
    "follower": ("KafkaFollower",),
    "gate": ("Gate", "GateStats", "GateTimeout", "Passage", "TaskPassage", "Throttled"),
    "throttle_state": ("Lease", "ThrottleView"),
    "waiting_room": ("GateDepleted", "GateLimits", "RequestSizeRefused"),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name)
    return getattr(import_module(f"{__name__}.{module}"), name)
