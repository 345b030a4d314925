from typing import Any, Literal

import numpy as np
import pytest

from quota.broker_levels.entries import UNREACHED, broker_entries, writable_levels
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from quota.units import bound_mistake
from tests.quota.factories import quota_row

PRODUCER, CONSUMER, REQUEST = QUOTA_TYPES


def entries(
    *rows: dict[str, Any], mirror: bool = False, mode: Literal["enforce", "shadow"] = "enforce"
) -> list[tuple[str, str, str, float, str]]:
    found = broker_entries(QuotaSnapshot.from_rows(rows, 1, mode), mirror)
    return [(*entry.key, entry.bound, str(entry.kind)) for entry in found]


@pytest.mark.parametrize(
    ("user", "client_id", "kind"),
    [
        ("alice", "etl", "level"),
        ("alice", "<default>", "bound"),
        ("alice", "", "level"),
        ("<default>", "etl", "bound"),
        ("<default>", "<default>", "bound"),
        ("<default>", "", "bound"),
        ("", "etl", "level"),
        ("", "<default>", "bound"),
    ],
)
def test_only_a_row_with_one_sensor_has_a_level(user: str, client_id: str, kind: str) -> None:
    row = quota_row(user, client_id, producer_byte_rate=5.0)
    assert entries(row) == [(user, client_id, PRODUCER, 5.0, kind)]
    assert entries(row, mirror=True) == [(user, client_id, PRODUCER, 5.0, "bound")]


def test_every_type_with_a_bound_has_an_entry() -> None:
    row = quota_row("alice", consumer_byte_rate=7.0, request_percentage=12.5)
    assert entries(row) == [("alice", "", CONSUMER, 7.0, "level"), ("alice", "", REQUEST, 12.5, "level")]


def test_a_shadow_row_and_a_table_in_shadow_mode_have_none() -> None:
    assert entries(quota_row("alice", producer_byte_rate=5.0, mode="shadow")) == []
    assert entries(quota_row("alice", producer_byte_rate=5.0), mode="shadow") == []


@pytest.mark.parametrize(
    ("other", "needed"),
    [
        (quota_row("<default>", "", producer_byte_rate=5.0), True),
        (quota_row("", "etl", producer_byte_rate=5.0), True),
        (quota_row("<default>", "", producer_byte_rate=5.0, mode="shadow"), False),
        (quota_row("<default>", "", consumer_byte_rate=5.0), False),
        (quota_row("alice", "etl", producer_byte_rate=5.0), False),
        (quota_row("bob", "", producer_byte_rate=5.0), False),
    ],
)
def test_an_exempt_row_has_an_entry_where_a_less_specific_row_would_hold(other: dict[str, Any], needed: bool) -> None:
    found = entries(quota_row("alice", mode="exempt"), other)
    assert (("alice", "", PRODUCER, UNREACHED, "unbounded") in found) is needed


def test_what_nobody_reaches_is_a_bound_that_kafka_takes() -> None:
    assert [bound_mistake(name, UNREACHED) for name in QUOTA_TYPES] == [None] * 3


@pytest.mark.parametrize(
    ("level", "bound", "quota_type", "written"),
    [
        (33.2, 100.0, PRODUCER, 34.0),
        (34.0, 100.0, CONSUMER, 34.0),
        (99.5, 99.7, PRODUCER, 99.7),
        (0.25, 1.0, PRODUCER, 1.0),
        (33.2, 100.0, REQUEST, 33.2),
    ],
)
def test_a_level_is_written_as_kafka_takes_it(level: float, bound: float, quota_type: str, written: float) -> None:
    assert writable_levels(np.array([level]), np.array([bound]), quota_type).tolist() == [written]
