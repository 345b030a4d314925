"""Changes are sent in requests that a controller takes, none of an entity's values apart from the others."""

from itertools import chain

import pytest

from pipeline.brokers.native import batches_of, unsendable
from tests.pipeline.brokers.quota_broker import pair, user

THREE = {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0, "request_percentage": None}


@pytest.mark.parametrize(
    ("entities", "values", "batches"),
    [(0, 3, []), (1, 3, [1]), (2_000, 3, [2_000]), (2_001, 3, [2_000, 1]), (6_000, 1, [6_000]), (6_001, 1, [6_000, 1])],
)
def test_a_request_has_at_most_6000_values(entities: int, values: int, batches: list[int]) -> None:
    of_each = dict(list(THREE.items())[:values])
    assert [len(batch) for batch in batches_of({user(str(n)): of_each for n in range(entities)})] == batches


def test_a_request_has_at_most_2_mib_of_names_once_for_each_value() -> None:
    name = "é" * 2**13  # 16 KiB; with 3 values, and a client-id of a byte, 42 fit
    changes = {pair(name, chr(ord("0") + number)): THREE for number in range(70)}
    assert [len(batch) for batch in batches_of(changes)] == [42, 28]


@pytest.mark.parametrize(("name", "is_refused"), [("n" * 32_767, False), ("n" * 32_768, True), ("é" * 16_384, True)])
def test_a_name_has_at_most_32767_bytes(name: str, is_refused: bool) -> None:
    entity = pair("alice", name)
    refused = unsendable({entity: THREE, user("bob"): THREE})
    told = f"{entity}: a name has 32768 bytes; the largest allowed is 32767"
    assert list(map(str, refused)) == ([told] if is_refused else [])


def test_nothing_is_lost_or_sent_twice_and_the_order_stays() -> None:
    changes = {user(str(n)): {"producer_byte_rate": float(n)} for n in range(13_000)}
    sent = list(chain.from_iterable(batch.items() for batch in batches_of(changes)))
    assert sent == list(changes.items())


def test_an_entity_that_is_too_large_for_a_request_has_one_of_its_own() -> None:
    changes = {user("a"): THREE, user("n" * 2**20): THREE, user("b"): THREE}
    assert [len(batch) for batch in batches_of(changes)] == [1, 1, 1]
