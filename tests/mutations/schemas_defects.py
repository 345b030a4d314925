"""Defects of records that cross a boundary."""

from typing import Final

from tests.mutations.planting import Defect

_EVENT: Final = "tests/schemas/test_usage.py"
_RECORD: Final = "tests/schemas/test_throttle_record.py"
_THROTTLES: Final = "tests/pipeline/throttle/test_purgatory.py"
_ARROW: Final = "tests/schemas/test_columns.py"

DEFECTS: Final = (
    Defect(
        "a name's length is counted in characters, not in bytes",
        "MaxUtf8Bytes._checked",
        ("len(value.encode())", "len(value)"),
        _EVENT,
    ),
    Defect(
        "a measure may be as large as its sums can hold once",
        "LARGEST_MEASURE",
        ("2**40", "2**62"),
        "tests/schemas/test_columns.py",
    ),
    Defect(
        "a reader refuses records of a newer writer",
        "ThrottleRecord.from_value",
        ("{name: parsed[name] for name in cls.model_fields if name in parsed}", "parsed"),
        _RECORD,
    ),
    Defect(
        "the time of a message is when its throttle ends",
        "message_of",
        ("stored_ms = written_ms(row)", "stored_ms = row['throttled_until_ms']"),
        _RECORD,
    ),
    Defect(
        "compaction takes all client-ids of a user for one client",
        "message_of",
        ("key = [row[name] for name in _KEY]", "key = [row[name] for name in _KEY[:3]]"),
        _RECORD,
    ),
    Defect(
        "the holds of a user for several quota types are one",
        "schemas:Target.of",
        ('row["quota_type"] if of_user else None', "None"),
        f"{_THROTTLES}::test_a_user_is_held_for_each_quota_type_on_its_own",
    ),
    Defect(
        "the sensor of a user and its client without a client-id have one decision id",
        "_encoded",
        ('return b"\\xff" * 8', 'return _encoded("")'),
        "tests/schemas/test_columns.py::test_ids_of_a_sensor_and_of_a_client_without_a_client_id_differ",
    ),
    Defect(
        "rows go into the partition of the day that clients' events have",
        "conform",
        ("day_ms = _DECIDED_AT if _DECIDED_AT in times else", "day_ms ="),
        _ARROW,
    ),
    Defect(
        "milliseconds are taken for microseconds",
        "_instants",
        (
            'milliseconds = epoch_ms.cast(pa.int64()).cast(pa.timestamp("ms", "UTC"))',
            'milliseconds = epoch_ms.cast(pa.int64()).cast(pa.timestamp("us", "UTC"))',
        ),
        _ARROW,
    ),
    Defect(
        "decisions about names that run together have one id",
        "_encoded",
        ('return len(text).to_bytes(8, "big") + text', "return text"),
        "tests/schemas/test_columns.py",
    ),
    Defect(
        "a violation that makes a running throttle longer counts as a new one",
        "verb_of",
        ('_VERBS.get(cause, "renew")', '"renew" if cause not in _VERBS else "throttle"'),
        "tests/pipeline/replay/test_story.py",
    ),
)
