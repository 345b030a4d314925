"""Moved to `pipeline.gate`: `limits` (`Room` is now `GateLimits`), `occupancy`, `waiting_room`. For one release."""

from typing import Any, Final

from pipeline.throttle.moved_names import moved_name

_MOVED: Final = {
    "Room": ("pipeline.gate.limits", "GateLimits"),
    "WhenFull": ("pipeline.gate.limits", "WhenFull"),
    "Occupancy": ("pipeline.gate.occupancy", "Occupancy"),
}


def __getattr__(name: str) -> Any:
    new_module, new_name = _MOVED.get(name, ("pipeline.gate.waiting_room", name))
    return moved_name(name, __name__, new_module, new_name)
