"""The tables `quotas` and `tenants`: read at a version, watched, edited under a lock, kept in files and in history.

`__all__` is what is supported. A module is loaded when one of its names is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.errors import Refused
    from pipeline.tables.quotas.edit import QuotaChange
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.quotas.table import (
        EditAudit,
        QuotaCommit,
        QuotaTable,
        QuotaTableState,
        TenantTable,
        TenantTableState,
        local_audit,
    )
    from pipeline.tables.quotas.tenants import TenantChange

__all__ = [
    "EditAudit",
    "QuotaChange",
    "QuotaCommit",
    "QuotaSource",
    "QuotaTable",
    "QuotaTableState",
    "Refused",
    "TenantChange",
    "TenantTable",
    "TenantTableState",
    "local_audit",
]

_MODULES = {
    "pipeline.errors": ("Refused",),
    "pipeline.tables.quotas.edit": ("QuotaChange",),
    "pipeline.tables.quotas.source": ("QuotaSource",),
    "pipeline.tables.quotas.table": (
        "EditAudit",
        "QuotaCommit",
        "QuotaTable",
        "QuotaTableState",
        "TenantTable",
        "TenantTableState",
        "local_audit",
    ),
    "pipeline.tables.quotas.tenants": ("TenantChange",),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name)
    return getattr(import_module(module), name)
