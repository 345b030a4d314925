"""The two requests for client quotas (KIP-546), made from changes and read back: pure, on kafka-python's classes.

DescribeClientQuotas is API 48, AlterClientQuotas API 49; of both kafka-python has the generated classes and no more.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kafka import errors as kafka_errors
from kafka.protocol import admin as kafka_admin

from pipeline.brokers.entity import NativeEntity, NativeQuota
from schemas.usage import LARGEST_NAME_BYTES

QuotaChanges = Mapping[NativeEntity, Mapping[str, float | None]]
"""Entity -> key -> new value; None removes the value. To remove what is not set is no mistake for Kafka."""

# kafka-python has no types.
_ERRORS: Final[Any] = kafka_errors
_DESCRIBE: Final[Any] = kafka_admin.DescribeClientQuotasRequest
_ALTER: Final[Any] = kafka_admin.AlterClientQuotasRequest

# Far below what a controller of Kafka 4.3.1 took (15 000 values, 13 MB of names); it refused all of a request of 25 MB.
_MOST_VALUES: Final = 6_000
_MOST_NAMES_BYTES: Final = 2**21


class AlterRefusal(NamedTuple):
    """An entity that the brokers refuse to change. Of its changes none is made.

    Attributes:
        entity: The entity.
        reason: The words of the controller, without a full stop.
    """

    entity: NativeEntity
    reason: str

    def __str__(self) -> str:
        return f"{self.entity}: {self.reason}"


def describe_request() -> Any:
    """Asks for every quota of every entity."""
    return _DESCRIBE(components=[], strict=False)


def quotas_in(response: Any) -> list[NativeQuota]:
    """The quotas of a DescribeClientQuotasResponse, in no certain order.

    Raises:
        kafka.errors.KafkaError: The response has an error.
    """
    _raise_error(response)
    return [
        NativeQuota(_entity_in(entry), {value.key: value.value for value in entry.values})
        for entry in response.entries or ()
    ]


def unsendable(changes: QuotaChanges) -> list[AlterRefusal]:
    """The entities with a name that is too long: a broker closes the connection of a client that sends it one."""
    longest_bytes = {entity: max(_name_sizes_bytes(entity), default=0) for entity in changes}
    return [
        AlterRefusal(entity, f"a name must have at most {LARGEST_NAME_BYTES} bytes; got {size_bytes}")
        for entity, size_bytes in longest_bytes.items()
        if size_bytes > LARGEST_NAME_BYTES
    ]


def batches_of(changes: QuotaChanges) -> Iterator[QuotaChanges]:
    """The changes in parts that a controller takes in one request, in their order: some thousands of entities each."""
    batch: dict[NativeEntity, Mapping[str, float | None]] = {}
    values = names_bytes = 0
    for entity, values_of_entity in changes.items():
        size_bytes = sum(_name_sizes_bytes(entity)) * len(values_of_entity)  # a record of its own for each value
        if batch and (values + len(values_of_entity) > _MOST_VALUES or names_bytes + size_bytes > _MOST_NAMES_BYTES):
            yield batch
            batch, values, names_bytes = {}, 0, 0
        batch[entity] = values_of_entity
        values += len(values_of_entity)
        names_bytes += size_bytes
    if batch:
        yield batch


def alter_request(changes: QuotaChanges, *, validate_only: bool) -> Any:
    """Asks for changes, each entity by itself: others are changed if one is refused.

    Args:
        changes: Each entity is there once, as a mapping has it: Kafka would change it and call it a duplicate.
        validate_only: Only ask whether they would be refused.
    """
    entry, part, change = _ALTER.EntryData, _ALTER.EntryData.EntityData, _ALTER.EntryData.OpData
    return _ALTER(
        entries=[
            entry(
                entity=[part(entity_type=kind, entity_name=name) for kind, name in entity.parts],
                ops=[
                    change(key=key, value=0.0 if value is None else value, remove=value is None)
                    for key, value in values.items()
                ],
            )
            for entity, values in changes.items()
        ],
        validate_only=validate_only,
    )


def refusals_in(response: Any) -> list[AlterRefusal]:
    """The entities that an AlterClientQuotasResponse refuses.

    Raises:
        kafka.errors.KafkaError: The whole request failed: the client may not alter quotas, or it may be tried again.
    """
    return list(_refusals(response.entries))


def _refusals(entries: Iterable[Any]) -> Iterator[AlterRefusal]:
    for entry in entries:
        error = _ERRORS.for_code(entry.error_code)
        if error is _ERRORS.ClusterAuthorizationFailedError or error.retriable:
            raise error(entry.error_message)  # a broker says for each entity why it refuses the whole request
        if entry.error_code:
            yield AlterRefusal(_entity_in(entry), (entry.error_message or error.__name__).strip().rstrip("."))


def _name_sizes_bytes(entity: NativeEntity) -> list[int]:
    return [len((name or "").encode()) for _, name in entity.parts]


def _raise_error(response: Any) -> None:
    if response.error_code:
        raise _ERRORS.for_code(response.error_code)(response.error_message)


def _entity_in(entry: Any) -> NativeEntity:
    return NativeEntity.of((part.entity_type, part.entity_name) for part in entry.entity)
