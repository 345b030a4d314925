"""An entity of the brokers, and the same one in the quota table."""

import pytest

from pipeline.brokers.native import NativeEntity, NativeQuota
from quota.entity import DEFAULT, label
from tests.pipeline.brokers.quota_broker import client, ip, pair, user

ROWS = [
    (user("alice"), ("alice", "")),
    (user(None), (DEFAULT, "")),
    (client("etl"), ("", "etl")),
    (client(None), ("", DEFAULT)),
    (pair("alice", "etl"), ("alice", "etl")),
    (pair("alice", None), ("alice", DEFAULT)),
    (pair(None, "etl"), (DEFAULT, "etl")),
    (pair(None, None), (DEFAULT, DEFAULT)),
]


@pytest.mark.parametrize(("entity", "names"), ROWS, ids=str)
def test_a_row_of_the_table_and_an_entity_of_the_brokers_name_the_same(
    entity: NativeEntity, names: tuple[str, str]
) -> None:
    assert entity.row_names() == names
    assert NativeEntity.of_row(*names) == entity
    assert str(entity) == label(*names)


@pytest.mark.parametrize(
    "entity",
    [
        ip("10.0.0.1"),
        ip(None),
        user("<default>"),
        pair("alice", "<default>"),
        user(""),
        pair("", None),
        NativeEntity.of([("user", "alice"), ("client-id-prefix", "etl")]),
        NativeEntity(()),
    ],
    ids=str,
)
def test_the_table_has_no_row_for_others(entity: NativeEntity) -> None:
    assert entity.row_names() is None


def test_the_order_of_the_parts_does_not_matter() -> None:
    parts = [("user", "alice"), ("client-id", None)]
    assert NativeEntity.of(parts) == NativeEntity.of(reversed(parts))


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        (ip("10.0.0.1"), "ip '10.0.0.1'"),
        (ip(None), "the default ip"),
        (user("<default>"), "user-principal '<default>'"),
        (NativeEntity.of([("zone", "a"), ("user", "u")]), "user-principal 'u', zone 'a'"),
    ],
)
def test_an_entity_is_written_as_kafkas_tools_do(entity: NativeEntity, text: str) -> None:
    assert str(entity) == text


def test_values_are_ours_or_others() -> None:
    quota = NativeQuota(user("alice"), {"producer_byte_rate": 1.0, "controller_mutation_rate": 2.0})
    assert (quota.bounds, quota.others) == ({"producer_byte_rate": 1.0}, {"controller_mutation_rate": 2.0})
