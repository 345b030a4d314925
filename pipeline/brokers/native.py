"""The client quotas of a cluster's brokers: their entities, the requests, the connection, and the table's rows.

The connection is made again when it is lost.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.protocol import admin as kafka_admin

from pipeline.cluster.acls import ALTER_QUOTAS, DESCRIBE_QUOTAS, Acl
from pipeline.cluster.connecting import ClusterAccess, as_cluster_error
from pipeline.errors import ClusterUnreachable, Refused, Unreachable
from pipeline.tables.quotas.edit import QuotaValues
from quota.broker_levels.entries import EntryKey, is_metering
from quota.broker_levels.writes import Change
from quota.entity import DEFAULT, QUOTA_TYPES
from quota.units import bound_mistake, exact_text
from schemas.usage import LARGEST_NAME_BYTES

# Quota entities as brokers know them, and how the quota table names the same ones.

_WORDS: Final = {"user": "user-principal"}
_SHOWN_FIRST: Final = ("user", "client-id")


@dataclass(frozen=True, slots=True)
class NativeEntity:
    """What a broker has quotas for: a user, a client-id, a pair of them, or an ip. Make it with `of` or `of_row`.

    Attributes:
        parts: Type (`user`, `client-id`, `ip`) and name of each part, sorted by type. The name None is the default;
            `<default>` is a name like any other.
    """

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[str, str | None]]) -> Self:
        """The entity with these parts, in any order; no type may be there twice."""
        return cls(tuple(sorted(parts, key=lambda part: part[0])))

    @classmethod
    def of_row(cls, user: str, client_id: str) -> Self:
        """The entity of a row of the quota table, where `<default>` is the default and "" is not a part."""
        names = (("client-id", client_id), ("user", user))
        return cls(tuple((kind, None if name == DEFAULT else name) for kind, name in names if name))

    def row_names(self) -> tuple[str, str] | None:
        """User and client-id as a row of the quota table has them; None if no row can name this entity.

        The table has no ips. It cannot name a user or client-id that is called `<default>`, or has an empty name.
        """
        names = {"user": "", "client-id": ""}
        for kind, name in self.parts:
            if kind not in names or name in {"", DEFAULT}:
                return None
            names[kind] = DEFAULT if name is None else name
        return (names["user"], names["client-id"]) if self.parts else None

    def __str__(self) -> str:
        """As Kafka's tools write it: `user-principal 'alice', the default client-id`."""
        last = len(_SHOWN_FIRST)
        shown = sorted(self.parts, key=lambda part: _SHOWN_FIRST.index(part[0]) if part[0] in _SHOWN_FIRST else last)
        named = ((_WORDS.get(kind, kind), name) for kind, name in shown)
        return ", ".join(f"the default {word}" if name is None else f"{word} '{name}'" for word, name in named)


@dataclass(frozen=True, slots=True)
class NativeQuota:
    """The quota that brokers have for one entity. It holds for each broker by itself.

    The values are Kafka's: bytes per second, or percent of one thread. Also keys that kquota does not have, as
    `controller_mutation_rate`, and values that it refuses, as NaN.
    """

    entity: NativeEntity
    values: Mapping[str, float]

    @property
    def bounds(self) -> dict[str, float]:
        """The values of kquota's own quota types."""
        return {key: value for key, value in self.values.items() if key in QUOTA_TYPES}

    @property
    def others(self) -> dict[str, float]:
        """The values that are none of kquota's."""
        return {key: value for key, value in self.values.items() if key not in QUOTA_TYPES}


def held_in(quotas: Iterable[NativeQuota]) -> dict[EntryKey, float]:
    """The values of kquota's quota types, at entities that the quota table can name."""
    return {
        EntryKey(*names, quota_type): value
        for quota in quotas
        if (names := quota.entity.row_names()) is not None
        for quota_type, value in quota.bounds.items()
    }


# The two requests for client quotas (KIP-546), made from changes and read back: pure, on kafka-python's classes.
#
# DescribeClientQuotas is API 48, AlterClientQuotas API 49; of both kafka-python has the generated classes and no more.

QuotaChanges = Mapping[NativeEntity, Mapping[str, float | None]]
"""Entity -> key -> new value; None removes the value. To remove what is not set is allowed by Kafka."""

# kafka-python has no types.
_ERRORS: Final[Any] = kafka_errors
_DESCRIBE: Final[Any] = kafka_admin.DescribeClientQuotasRequest
_ALTER: Final[Any] = kafka_admin.AlterClientQuotasRequest
_CONFIGS: Final[Any] = kafka_admin.DescribeConfigsRequest

# With the longest names, which are in a request once for each value, it has 10 MB. A controller of Kafka 4.3.1 took
# 13 MB, and refused all of a request of 25 MB.
_MOST_ENTITIES: Final = 50


class AlterRefusal(NamedTuple):
    """An entity that the brokers refuse to change, with the words of the controller. Of its changes none is made."""

    entity: NativeEntity
    reason: str

    def __str__(self) -> str:
        return f"{self.entity}: {self.reason}"


def describe_request() -> Any:
    """Asks for every quota of every entity."""
    return _DESCRIBE(components=[], strict=False)


def quotas_in(response: Any) -> list[NativeQuota]:
    """The quotas of a DescribeClientQuotasResponse, in no certain order; `KafkaError` if it has an error."""
    if response.error_code:
        raise _ERRORS.for_code(response.error_code)(response.error_message)
    return [
        NativeQuota(_entity_in(entry), {value.key: value.value for value in entry.values})
        for entry in response.entries or ()
    ]


def unsendable(changes: QuotaChanges) -> list[AlterRefusal]:
    """The entities with a name that is too long: a broker closes the connection of a client that sends it one."""
    longest_bytes = {
        entity: max((len((name or "").encode()) for _, name in entity.parts), default=0) for entity in changes
    }
    return [
        AlterRefusal(entity, f"a name has {size_bytes} bytes; the largest allowed is {LARGEST_NAME_BYTES}")
        for entity, size_bytes in longest_bytes.items()
        if size_bytes > LARGEST_NAME_BYTES
    ]


def batches_of(changes: QuotaChanges) -> Iterator[QuotaChanges]:
    """The changes in parts that a controller takes in one request, in their order."""
    entities = list(changes)
    for at in range(0, len(entities), _MOST_ENTITIES):
        yield {entity: changes[entity] for entity in entities[at : at + _MOST_ENTITIES]}


def alter_request(changes: QuotaChanges) -> Any:
    """Asks for changes, each entity by itself: others are changed if one is refused.

    Each entity is there once, as a mapping has it: Kafka would change a second one and call it a duplicate.
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
        validate_only=False,
    )


def refusals_in(response: Any) -> list[AlterRefusal]:
    """The entities that an AlterClientQuotasResponse refuses.

    Raises:
        kafka.errors.KafkaError: The whole request failed: the client may not alter quotas, or it may be tried again.
    """
    refused = []
    for entry in response.entries:
        error = _ERRORS.for_code(entry.error_code)
        if error is _ERRORS.ClusterAuthorizationFailedError or error.retriable:
            raise error(entry.error_message)  # a broker repeats for each entity why it refuses the whole request
        if entry.error_code:
            reason = (entry.error_message or error.__name__).strip().rstrip(".")
            refused.append(AlterRefusal(_entity_in(entry), reason))
    return refused


CALLBACK: Final = "client.quota.callback.class"
"""The setting of a broker that names the class that decides on quotas in place of Kafka's own (KIP-257)."""

_OF_BROKER: Final = 4  # the type of a resource in DescribeConfigs


def callback_request(broker_id: int) -> Any:
    """Asks a broker for its `CALLBACK`."""
    return _CONFIGS(resources=[(_OF_BROKER, str(broker_id), [CALLBACK])])


def callback_in(response: Any) -> str | None:
    """The class that a broker has; None if Kafka itself decides. `KafkaError` if the response has an error."""
    for result in response.results:
        if result.error_code:
            raise _ERRORS.for_code(result.error_code)(result.error_message)
        for setting in result.configs:
            return setting.value or None
    return None


def _entity_in(entry: Any) -> NativeEntity:
    return NativeEntity.of((part.entity_type, part.entity_name) for part in entry.entity)


@dataclass(frozen=True, slots=True)
class Look:
    """The brokers, and all values of kquota's quota types that they hold at entities that the quota table can name.

    `callbacks` has the brokers that do not enforce these values, and the class that decides there.
    """

    broker_ids: tuple[str, ...]
    held: Mapping[EntryKey, float]
    callbacks: Mapping[str, str] = field(default_factory=dict)

    def refuse_callbacks(self) -> None:
        """Raise `Refused` if a broker leaves quotas to a class that is not Kafka's own."""
        if self.callbacks:
            fix = f"take {CALLBACK} out of the configuration of these brokers and restart them (in Strimzi: spec.kafka."
            fix += "quotas.type: kafka), or let clients wait by the gate or the throttle topic"
            raise Refused(callbacks_text(self.callbacks), fix)


def callbacks_text(callbacks: Mapping[str, str]) -> str:
    """Which brokers do not enforce the quotas that kquota writes, and why."""
    brokers: dict[str, list[str]] = {}
    for broker_id, name in callbacks.items():
        brokers.setdefault(name, []).append(broker_id)
    who = "; ".join(f"{name} on broker {', '.join(ids)}" for name, ids in brokers.items())
    return f"Kafka's own quotas, which kquota writes, are off where another class decides ({CALLBACK}): {who}"


log = logging.getLogger(__name__)

_REQUESTS: Final = {DESCRIBE_QUOTAS: "DescribeClientQuotas (API 48)", ALTER_QUOTAS: "AlterClientQuotas (API 49)"}
"""The right that a request needs -> the request."""

Outcome = TypeVar("Outcome")


class NativeQuotas:
    """Reads and changes Kafka's own client quotas. Not safe for several threads. Use it in a `with` block, or close it.

    It connects at the first call, and again after a failure. A call that is not answered may be made again: to describe
    changes nothing, and to alter twice is the same as once.

    Raises:
        ClusterUnreachable: No broker answers.
        Unreachable: The credentials are refused.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._admin: Any = None

    def describe(self) -> list[NativeQuota]:
        """Every quota of every entity, ips among them, in no certain order.

        Raises:
            PermissionMissing: It needs DescribeConfigs on the cluster.
            ClusterUnreachable: No answer.
            Unreachable: The brokers are older than 2.6, or refuse the credentials at a new connection.
        """
        return self._called(DESCRIBE_QUOTAS, lambda admin: quotas_in(_sent(admin, describe_request())))

    def alter(self, changes: QuotaChanges) -> list[AlterRefusal]:
        """Change values of any number of entities; None removes one, and values that are not named stay.

        They are sent in several requests. If it raises, the entities of earlier requests are changed; to repeat all of
        it does no harm.

        Returns:
            The entities that were refused. All others are changed. Other clients, and `describe`, see it as soon as
            the broker they ask has heard of it, mostly within some ms.
        """
        refused = unsendable(changes)
        left_out = {refusal.entity for refusal in refused}
        sent = {entity: values for entity, values in changes.items() if entity not in left_out}
        for batch in batches_of(sent):
            refused += self._called(ALTER_QUOTAS, partial(_altered, batch))
        return refused

    def look(self) -> Look:
        """The brokers, and what they hold of kquota's quota types. Raises as `describe`."""
        held, broker_ids = held_in(self.describe()), self.broker_ids()
        return Look(tuple(map(str, broker_ids)), held, self.callbacks(broker_ids))

    def make(self, changes: Sequence[Change]) -> dict[EntryKey, str]:
        """Make changes; returns the keys that the brokers refuse, with the reason. Raises as `alter`."""
        by_entity: dict[NativeEntity, dict[str, float | None]] = {}
        entities = {change.key: NativeEntity.of_row(change.key.user, change.key.client_id) for change in changes}
        for change in changes:
            by_entity.setdefault(entities[change.key], {})[change.key.quota_type] = change.new
        refused = {refusal.entity: refusal.reason for refusal in self.alter(by_entity)}
        return {key: refused[entity] for key, entity in entities.items() if entity in refused}

    def broker_ids(self) -> list[int]:
        """The ids of the brokers that are up, in order. A broker that is fenced, as it is at its start, is none."""
        brokers = self._called(DESCRIBE_QUOTAS, lambda admin: admin.describe_cluster()["brokers"])
        return sorted(broker["broker_id"] for broker in brokers if not broker.get("is_fenced"))

    def callbacks(self, broker_ids: Iterable[int]) -> dict[str, str]:
        """The class that decides on quotas, by the id of each broker where that is not Kafka; raises as `describe`.

        A broker that does not answer, as one that is being restarted, or that has just joined, is left out.
        """
        found, is_new = self._called(DESCRIBE_QUOTAS, partial(_callbacks, tuple(broker_ids)))
        if is_new:
            self.close()  # the next connection knows its address
        return found

    def close(self) -> None:
        """Leave the cluster. Harmless when called twice."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()

    def _called(self, right: Acl, call: Callable[[Any], Outcome]) -> Outcome:
        if self._admin is None:
            self._admin = self._access.open(KafkaAdminClient)
        try:
            with as_cluster_error(self._access.bootstrap_servers):
                try:
                    return call(self._admin)
                except _ERRORS.IncompatibleBrokerVersion as exc:
                    servers = self._access.bootstrap_servers
                    message = f"the Kafka brokers at {servers} do not know the request {_REQUESTS[right]}"
                    raise Unreachable(message, "update them: Kafka has it since 2.6") from exc
                except _ERRORS.KafkaError as exc:
                    raise self._access.refusal(exc, [right]) or exc from exc
        except ClusterUnreachable:
            self.close()  # brokers may be at other addresses when they are back
            raise


def _altered(batch: QuotaChanges, admin: Any) -> list[AlterRefusal]:
    return refusals_in(_sent(admin, alter_request(batch)))


_ANSWER_MS: Final = 3_000


def _callbacks(broker_ids: Sequence[int], admin: Any) -> tuple[dict[str, str], bool]:
    """The class of each broker that names one, and whether this connection does not know a broker."""
    found, is_new = dict[str, str](), False
    for broker_id in broker_ids:
        try:
            name = callback_in(_sent(admin, callback_request(broker_id), broker_id, _ANSWER_MS))
        except _ERRORS.ClusterAuthorizationFailedError:
            raise
        except _ERRORS.KafkaError as exc:
            is_new |= isinstance(exc, _ERRORS.UnknownBrokerIdError)
            log.debug("broker %d does not tell its %s: %s", broker_id, CALLBACK, exc)
        else:
            found.update({str(broker_id): name} if name else {})
    return found, is_new


def _sent(admin: Any, request: Any, broker_id: int | None = None, timeout_ms: int | None = None) -> Any:
    """The response to a request, of one broker or of any: they pass on to the controller what it must do."""
    return admin._manager.run(admin._manager.send, request, broker_id, timeout_ms)


# The quotas of a cluster's brokers as quotas of the table; what the table cannot hold is reported, never dropped.


def imported(quotas: Iterable[NativeQuota], factor: int) -> tuple[list[QuotaValues], list[str]]:
    """Make quotas of the table from those of brokers.

    Each bound is multiplied by the factor: the number of brokers makes of what each one allows what all allow together.

    Returns:
        The quotas, in the order of their entities; and what is left out of them, a line each: entity, values and the
        reason. A bound that cannot be held is in none of the quotas, so that the table keeps what it has.
    """
    declared: list[QuotaValues] = []
    left_out: list[str] = []
    for quota in sorted(quotas, key=lambda quota: str(quota.entity)):
        names = quota.entity.row_names()
        if names is None:
            left_out.append(f"{quota.entity}: {_values(quota.values.items())}; {_why_unnamed(quota)}")
            continue
        scaled = {
            key: value * factor
            for key, value in quota.bounds.items()
            if not is_metering(EntryKey(*names, key), value)  # it bounds no client
        }
        refused = {key: mistake for key, value in scaled.items() if (mistake := bound_mistake(key, value))}
        if scaled.keys() - refused.keys():
            bounds = {key: scaled.get(key) for key in QUOTA_TYPES if key not in refused}
            declared.append({"user": names[0], "client_id": names[1], **bounds})
        reasons = [f"{_values([(key, scaled[key])])}; {mistake}" for key, mistake in refused.items()]
        if quota.others:
            reasons.append(f"{_values(quota.others.items())}; kquota does not meter it")
        left_out += [f"{quota.entity}: {reason}" for reason in reasons]
    return declared, left_out


def _values(values: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{key}={_number(value)}" for key, value in values)


def _number(value: float) -> str:
    return exact_text(value) if abs(value) < float("inf") else str(value)


def _why_unnamed(quota: NativeQuota) -> str:
    unknown = sorted(kind for kind, _ in quota.entity.parts if kind not in {"user", "client-id"})
    if unknown:
        prefix = next((name for kind, name in quota.entity.parts if kind == "client-id-prefix"), None)
        instead = f"; a tenant with the client-id pattern {prefix}* bounds these clients together" if prefix else ""
        return f"kquota has no quotas for {', '.join(unknown)}{instead}"
    return f"a name of the table must not be empty, nor {DEFAULT}, which is reserved for the default"
