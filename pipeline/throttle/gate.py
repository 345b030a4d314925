"""Moved to `pipeline.gate.gate`. The old names work for one release."""

from typing import Any

from pipeline.throttle.moved_names import moved_name


def __getattr__(name: str) -> Any:
    return moved_name(name, __name__, "pipeline.gate.gate")
