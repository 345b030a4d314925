"""The decisions: which quota applies, what rate a client has, and how long it must wait. No clock, no I/O.

`__all__` is what is supported; start at `QuotaEngine` and `QuotaSnapshot`. `broker_level` is the module: the function
has the same name. A module is loaded when one of its names is first asked for, so a program that needs the names of
quota entities loads neither NumPy nor pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quota import broker_level
    from quota.engine import QuotaEngine
    from quota.entity import QUOTA_TYPES, Level
    from quota.errors import InvalidArgument, InvalidQuotas, InvalidUsage, QuotaError
    from quota.snapshot import Quota, QuotaSnapshot
    from quota.throttle_time import ThrottleCaps

__all__ = [
    "QUOTA_TYPES", "InvalidArgument", "InvalidQuotas", "InvalidUsage", "Level", "Quota", "QuotaEngine", "QuotaError",
    "QuotaSnapshot", "ThrottleCaps", "broker_level",
]  # fmt: skip

_MODULES = {
    "engine": ("QuotaEngine",),
    "entity": ("Level", "QUOTA_TYPES"),
    "errors": ("InvalidArgument", "InvalidQuotas", "InvalidUsage", "QuotaError"),
    "snapshot": ("Quota", "QuotaSnapshot"),
    "throttle_time": ("ThrottleCaps",),
}


def __getattr__(name: str) -> Any:
    if name == "broker_level":
        return import_module("quota.broker_level")
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name)
    return getattr(import_module(f"{__name__}.{module}"), name)
