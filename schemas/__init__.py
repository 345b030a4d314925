"""Records that cross a boundary: one pydantic model per record. All other forms are derived from the models.

`usage` and `throttle_record` have the values of topics; they and `rows` have the rows of Delta tables.
`columns` and `arrow` derive JSON Schema and Arrow schema. See docs/design.md, "Contracts". `__all__` is what
is supported. A module is loaded when one of its names is first asked for, so a program that needs one record loads
neither pyarrow nor the other models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schemas.arrow import arrow_schema, conform
    from schemas.columns import json_schema
    from schemas.names import (
        MARKER_TOPIC,
        THROTTLE_TOPIC,
        USAGE_TOPIC,
        ClientKey,
        QuotaType,
        RowsDoNotFit,
        SchemaError,
        UnreadableRecord,
    )
    from schemas.rows import (
        BatchRow,
        BrokerQuotaRow,
        DeadLetterRow,
        DecisionRow,
        QuotaRow,
        RatesRow,
        SensorStateRow,
        TenantRow,
    )
    from schemas.throttle_record import ThrottleByMinuteRow, ThrottleEventRow, ThrottleRecord
    from schemas.usage import UsageByMinuteRow, UsageBySecondRow, UsageEvent, UsageRow

__all__ = [
    "MARKER_TOPIC", "THROTTLE_TOPIC", "USAGE_TOPIC", "BatchRow", "BrokerQuotaRow", "ClientKey", "DeadLetterRow",
    "DecisionRow", "QuotaRow", "QuotaType", "RatesRow", "RowsDoNotFit", "SchemaError", "SensorStateRow", "TenantRow",
    "ThrottleByMinuteRow", "ThrottleEventRow", "ThrottleRecord", "UnreadableRecord", "UsageByMinuteRow",
    "UsageBySecondRow", "UsageEvent", "UsageRow", "arrow_schema", "conform", "json_schema",
]  # fmt: skip

_MODULES = {
    "arrow": ("arrow_schema", "conform"),
    "columns": ("json_schema",),
    "names": (
        "ClientKey", "MARKER_TOPIC", "QuotaType", "RowsDoNotFit", "SchemaError", "THROTTLE_TOPIC", "USAGE_TOPIC",
        "UnreadableRecord",
    ),
    "rows": (
        "BatchRow", "BrokerQuotaRow", "DeadLetterRow", "DecisionRow", "QuotaRow", "RatesRow", "SensorStateRow",
        "TenantRow",
    ),
    "throttle_record": ("ThrottleByMinuteRow", "ThrottleEventRow", "ThrottleRecord"),
    "usage": ("UsageByMinuteRow", "UsageBySecondRow", "UsageEvent", "UsageRow"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name)
    return getattr(import_module(f"{__name__}.{module}"), name)
