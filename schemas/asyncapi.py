"""The AsyncAPI 3 document of the topics, and all files that are generated from the models.

`python -m schemas.asyncapi` writes `schemas/asyncapi.yaml` and `schemas/json/*.schema.json` again. The files are
committed, so that a client in any language can be written from them. A test checks that they equal the models.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from schemas.columns import json_schema
from schemas.names import MARKER_TOPIC, THROTTLE_TOPIC, USAGE_TOPIC
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

MODELS: Final[dict[str, type[BaseModel]]] = {
    "usage_event": UsageEvent,
    "throttle_record": ThrottleRecord,
    "quotas": QuotaRow,
    "tenants": TenantRow,
    "usage": UsageRow,
    "usage_by_second": UsageBySecondRow,
    "usage_by_minute": UsageByMinuteRow,
    "throttle_by_minute": ThrottleByMinuteRow,
    "batches": BatchRow,
    "decisions": DecisionRow,
    "throttle_events": ThrottleEventRow,
    "sensor_state": SensorStateRow,
    "rates": RatesRow,
    "dead_letters": DeadLetterRow,
    "broker_quotas": BrokerQuotaRow,
}
"""Every model by the name of its file. A topic value has the name of its record, a row that of its table."""

_CLOUD_EVENTS_HEADERS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["ce_specversion", "ce_id", "ce_type", "ce_source", "ce_time", "content-type"],
    "properties": {
        "ce_specversion": {"type": "string", "const": "1.0"},
        "ce_id": {"type": "string", "description": "`decision_id`/`publish_seq`."},
        "ce_type": {"type": "string", "enum": ["kquota.throttle.v2", "kquota.release.v2"]},
        "ce_source": {"type": "string", "description": "/kquota/ and the cluster, percent-encoded."},
        "ce_kquotajob": {"type": "string", "description": "The job that published the record; a topic belongs to one."},
        "ce_time": {"type": "string", "format": "date-time", "description": "When the record was stored."},
        "content-type": {"type": "string", "const": "application/json"},
    },
}


def asyncapi_document() -> dict[str, Any]:
    """The document of the three topics. The payloads of the messages are the generated JSON Schemas."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "kquota topics",
            "version": "2.0.0",
            "description": "What meters send to the quota pipeline, and what it sends to those who throttle.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {"usage": _usage_channel(), "throttle": _throttle_channel(), "marker": _marker_channel()},
        "operations": {
            "receiveUsage": {"action": "receive", "channel": {"$ref": "#/channels/usage"}},
            "sendThrottle": {"action": "send", "channel": {"$ref": "#/channels/throttle"}},
        },
        "components": {
            "schemas": {"UsageEvent": json_schema(UsageEvent), "ThrottleRecord": json_schema(ThrottleRecord)}
        },
    }


def generated_files() -> dict[str, str]:
    """The contents of every generated file, by its path inside the package."""
    files = {
        f"json/{name}.schema.json": json.dumps(json_schema(model), indent=2, ensure_ascii=False) + "\n"
        for name, model in MODELS.items()
    }
    files["asyncapi.yaml"] = yaml.safe_dump(asyncapi_document(), sort_keys=False, allow_unicode=True, width=100)
    return files


def main() -> int:
    """Write every generated file."""
    root = Path(__file__).parent
    for path, text in generated_files().items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return 0


def _usage_channel() -> dict[str, Any]:
    event = "#/components/schemas/UsageEvent"
    payload = {"oneOf": [{"$ref": event}, {"type": "array", "items": {"$ref": event}}]}
    return {
        "address": USAGE_TOPIC,
        "description": "What clients used of brokers. Must use `message.timestamp.type=LogAppendTime`; read it with "
        "`isolation.level=read_committed`.",
        "messages": {"usage": {"contentType": "application/json", "payload": payload}},
        "bindings": {"kafka": {"topicConfiguration": {"retention.ms": 86_400_000}}},
    }


def _throttle_channel() -> dict[str, Any]:
    key = {
        **{"type": "array", "items": {"type": ["string", "null"]}, "minItems": 4, "maxItems": 5},
        "description": "[cluster, broker_id, user, client_id] as compact JSON; of all client-ids of a user "
        "[cluster, broker_id, user, null, quota_type].",
    }
    message = {
        "contentType": "application/json",
        "headers": _CLOUD_EVENTS_HEADERS,
        "payload": {"$ref": "#/components/schemas/ThrottleRecord"},
        "bindings": {"kafka": {"key": key}},
    }
    return {
        "address": THROTTLE_TOPIC,
        "description": "Throttles and releases. Read it with `isolation.level=read_committed`. A client is held if a "
        "throttle of its cluster, for all brokers or its own, has not ended and has its user and its client-id, or its "
        "user, null, and not its client-id among the exceptions. Null is not the empty client-id. A record of another "
        "`schema_version` holds no client.",
        "messages": {"throttle": message},
        "bindings": {"kafka": {"topicConfiguration": {"cleanup.policy": ["compact", "delete"]}}},
    }


def _marker_channel() -> dict[str, Any]:
    return {
        "address": MARKER_TOPIC,
        "description": "Holds no records. Its committed offset is the publish marker of the job.",
        "bindings": {"kafka": {"partitions": 1}},
    }


if __name__ == "__main__":
    sys.exit(main())
