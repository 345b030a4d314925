"""Old names of the gate. Its modules were in this room before they got one of their own, `pipeline.gate`.

The old names work for one release and give a `DeprecationWarning`. A name is looked up when it is asked for, so this
room still imports nothing of the gate.
"""

import importlib
import warnings
from typing import Any


def moved_name(name: str, old_module: str, new_module: str, new_name: str | None = None) -> Any:
    """Find what a moved name stands for. Only to be called by the `__getattr__` of the old module.

    Args:
        name: What was asked for.
        old_module: The module it was asked from.
        new_module: The module that has it now.
        new_name: What it is called there; None: as before.

    Raises:
        AttributeError: There is no such name in the new module either.
    """
    # Imports ask every module for dunder names, as __path__; those never moved.
    found = None if name.startswith("__") else getattr(importlib.import_module(new_module), new_name or name, None)
    if found is None:
        msg = f"module {old_module!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name)
    warnings.warn(
        f"{old_module}.{name} is now {new_module}.{new_name or name}; the old name goes with the next release",
        DeprecationWarning,
        stacklevel=3,
    )
    return found
