"""Quotas as other tools print or keep them, read as the native quotas that they stand for.

Four forms, told apart by what is in the text:

* Strimzi: resources `KafkaUser` in YAML or JSON, several documents or a `List`, as `kubectl get kafkausers -o yaml`
* kafka-configs: the lines of `--describe --entity-type users` or `clients`, or both
* Terraform: `terraform show -json`, of a state or of a plan, or the state file itself, with the resources `kafka_quota`
  and `kafka_quota_composite` of the provider Mongey/kafka
* rpk: `rpk cluster quotas describe --format json` or `yaml`

`pipeline.brokers.native.imported` makes rows of the table of them, and names what the table cannot hold.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import AliasPath, BaseModel, Field, ValidationError

from pipeline.brokers.native import NativeEntity, NativeQuota
from pipeline.command_line import command_text
from pipeline.errors import Refused, UsageError
from pipeline.tables.quotas.files import TENANT, QuotaFileRefused, load_documents
from quota.entity import DEFAULT
from quota.units import Mistakes


class Export(NamedTuple):
    """What a text of another tool says.

    Attributes:
        tool: that it comes from.
        quotas: one for each entity.
        left_out: what has no meaning here, a line each.
        tenants: the users of each tenant, if a label names it.
    """

    tool: str
    quotas: Sequence[NativeQuota]
    left_out: Sequence[str] = ()
    tenants: Mapping[str, Sequence[str]] = {}


def read_export(text: str, name: str, tenant_label: str | None = None) -> Export:
    """Find the form of a text, and read it.

    Args:
        name: of the text, for errors.
        tenant_label: the label of a `KafkaUser` that names the tenant of the user.

    Raises:
        Refused: the text has none of the forms, is a file of kquota, or has resources of several clusters.
        UsageError: a label is given for a form that has no labels.
        QuotaFileRefused: it is not as its form says, or names an entity twice; all mistakes with their places.
    """
    mistakes = Mistakes()
    if _CONFIGS_LINE.search(text):
        found = _of_kafka_configs(text, mistakes)
    else:
        documents = [one for one in load_documents(text, name, mistakes) if one is not None]
        first = documents[0] if documents and isinstance(documents[0], dict) else None
        if any(isinstance(one, dict) and (one.get("kind") == TENANT or "tenants" in one) for one in documents):
            msg = f"{name} has tenants as kquota writes them"
            raise _of_kquota(msg)
        read = None if first is None else next((read for key, read in _FORMS.items() if key in first), None)
        if first == {}:
            read = _of_rpk  # it leaves out an empty list
        if read is None:
            msg = f"{name} is not an export of quotas that kquota can read: Strimzi, kafka-configs, Terraform or rpk"
            raise _of_kquota(msg)
        found = read(documents, mistakes, tenant_label)
    if tenant_label is not None and found.tool != _STRIMZI:
        msg = f"--tenant-label is for a file of KafkaUser resources; {name} is of {found.tool}, which keeps no labels"
        raise UsageError(msg, "leave it out, and name the users: " + command_text("tenants", "alter", "--help"))
    for entity, count in Counter(quota.entity for quota in found.quotas).items():
        if count > 1:
            mistakes.add(f"{entity} is given {count} times")
    if mistakes.found:
        raise QuotaFileRefused(name, mistakes.found, f"quotas of {found.tool}", _EXPORTED_BY[found.tool])
    return found


_STRIMZI: Final = "Strimzi"
_KAFKA_CONFIGS: Final = "kafka-configs"
_TERRAFORM: Final = "Terraform"
_RPK: Final = "rpk"
_EXPORTED_BY: Final = {
    tool: f"or export anew: {command}"
    for tool, command in (
        (_STRIMZI, "kubectl get kafkausers -o yaml"),
        (_KAFKA_CONFIGS, "kafka-configs.sh --describe --entity-type users"),
        (_TERRAFORM, "terraform show -json"),
        (_RPK, "rpk cluster quotas describe --format json"),
    )
}


def _of_kquota(message: str) -> Refused:
    return Refused(message, f"files of kquota are read by: {command_text('quotas', 'apply', '-f', 'FILE')}")


Model = TypeVar("Model", bound=BaseModel)
_Numbers = dict[str, float | None]
_SHOWN_LENGTH: Final = 60

# kafka-configs. Names are printed as they are, also with quotes and commas in them.

_CONFIGS_LINE: Final = re.compile(r"^(?:Quota c|C)onfigs for (?=user-principal |client-id |ip |the default )", re.M)
_PART: Final = r"(?:the default (user-principal|client-id|ip)|(user-principal|client-id|ip) '(.*?)')"
_ENTITY: Final = re.compile(f"{_PART}(?:, {_PART})?")
_TYPE_OF_WORD: Final = {"user-principal": "user"}


class _Configs(BaseModel):
    values: _Numbers


def _of_kafka_configs(text: str, mistakes: Mistakes) -> Export:
    quotas, left_out = [], []
    for number, line in enumerate(text.splitlines(), 1):
        begin = _CONFIGS_LINE.match(line)
        entity, _, values = line[begin.end() if begin else 0 :].rpartition(" are ")
        parts = _ENTITY.fullmatch(entity)
        if not begin or not parts:
            left_out += [f"{line}; not a quota"] if line.strip() else []
            continue
        names = [parts.groups()[at : at + 3] for at in (0, 3)]
        native = NativeEntity.of(
            (_TYPE_OF_WORD.get(kind, kind), None if default else name)
            for default, named, name in names
            if (kind := default or named)
        )
        pairs = (pair.strip().partition("=")[::2] for pair in values.split(","))
        read = _checked(_Configs, {"values": dict(pairs)}, mistakes.at(f"line {number}"))
        quotas += [NativeQuota(native, _given(read.values))] if read else []
    return Export(_KAFKA_CONFIGS, quotas, left_out)


# The others have documents. A model says what is read of one; all else in it is passed over.


class _KafkaUser(BaseModel):
    name: str = Field(validation_alias=AliasPath("metadata", "name"), min_length=1)
    labels: dict[str, str] | None = Field(None, validation_alias=AliasPath("metadata", "labels"))
    authentication: str | None = Field(None, validation_alias=AliasPath("spec", "authentication", "type"))
    quotas: _Numbers | None = Field(None, validation_alias=AliasPath("spec", "quotas"))
    username: str | None = Field(None, validation_alias=AliasPath("status", "username"))

    @property
    def principal(self) -> str:
        """The user as brokers know it: the subject of its certificate, if it signs in with one."""
        return self.username or f"{'CN=' if self.authentication in {'tls', 'tls-external'} else ''}{self.name}"


_STRIMZI_KEYS: Final = {
    "producerByteRate": "producer_byte_rate",
    "consumerByteRate": "consumer_byte_rate",
    "requestPercentage": "request_percentage",
    "controllerMutationRate": "controller_mutation_rate",
}
_STRIMZI_CLUSTER: Final = "strimzi.io/cluster"


def _of_strimzi(documents: Sequence[Any], mistakes: Mistakes, tenant_label: str | None) -> Export:
    resources = [one for document in documents for one in _items(document)]
    is_user = [one.get("kind") == "KafkaUser" for one in resources]
    quotas: list[NativeQuota] = []
    tenants: dict[str, list[str]] = {}
    clusters: set[str] = set()
    for number, resource in enumerate(resources):
        user = _checked(_KafkaUser, resource, mistakes.at(number)) if is_user[number] else None
        if user is None:
            continue
        labels = user.labels or {}
        clusters |= {labels[_STRIMZI_CLUSTER]} if _STRIMZI_CLUSTER in labels else set()
        if tenant := labels.get(tenant_label or ""):
            tenants.setdefault(tenant, []).append(user.principal)
        if values := {_STRIMZI_KEYS.get(key, key): value for key, value in _given(user.quotas).items()}:
            quotas.append(NativeQuota(NativeEntity.of([("user", user.principal)]), values))
    if len(clusters) > 1:
        msg = f"the users are of several clusters: {', '.join(sorted(clusters))}"
        raise Refused(msg, f"give those of one: kubectl get kafkausers -l {_STRIMZI_CLUSTER}=NAME -o yaml")
    others = (str(one.get("kind")) for one, is_one in zip(resources, is_user, strict=True) if not is_one)
    missing = [f"label {tenant_label}, which no KafkaUser has"] if tenant_label is not None and not tenants else []
    return Export(_STRIMZI, quotas, [*_no_quotas(others), *missing], tenants)


def _items(document: Any) -> Iterator[Mapping[str, Any]]:
    listed = document.get("items") if isinstance(document, dict) else None
    if isinstance(listed, list):
        yield from (one if isinstance(one, dict) else {} for one in listed)
    else:
        yield document if isinstance(document, dict) else {}


class _Part(BaseModel):
    type: str
    name: str | None = None


class _Attributes(BaseModel):
    """Of `kafka_quota`, or of `kafka_quota_composite`. A default has no name, or an empty one."""

    entity_type: str | None = None
    entity_name: str | None = None
    entity: list[_Part] = []
    config: _Numbers | None = None

    @property
    def native(self) -> NativeEntity:
        own = [(self.entity_type, self.entity_name or None)] if self.entity_type else []
        return NativeEntity.of([*own, *((part.type, part.name or None) for part in self.entity)])


class _Instance(BaseModel):
    attributes: Any = None


class _Resource(BaseModel):
    """With `values` where Terraform shows it, with `instances` in a state file."""

    type: str
    name: str = ""
    values: Any = None
    instances: list[_Instance] | None = None

    def attributes(self) -> list[Any]:
        return [self.values] if self.instances is None else [one.attributes for one in self.instances]


class _Module(BaseModel):
    resources: list[_Resource] = []
    child_modules: list["_Module"] = []

    def all_resources(self) -> list[_Resource]:
        return [*self.resources, *(one for child in self.child_modules for one in child.all_resources())]


class _Terraform(BaseModel):
    planned: _Module | None = Field(None, validation_alias=AliasPath("planned_values", "root_module"))
    shown: _Module | None = Field(None, validation_alias=AliasPath("values", "root_module"))
    resources: list[_Resource] = []


_TERRAFORM_QUOTAS: Final = {"kafka_quota", "kafka_quota_composite"}


def _of_terraform(documents: Sequence[Any], mistakes: Mistakes, _tenant_label: str | None) -> Export:
    read = _checked(_Terraform, documents[0], mistakes) or _Terraform()
    resources = [*(read.planned or read.shown or _Module()).all_resources(), *read.resources]
    quotas, empty = [], []
    for resource in resources:
        address = f"{resource.type}.{resource.name}"
        for attributes in resource.attributes() if resource.type in _TERRAFORM_QUOTAS else ():
            read_quota = _checked(_Attributes, attributes, mistakes.at(address))
            if read_quota is None:
                continue
            if values := _given(read_quota.config):
                quotas.append(NativeQuota(read_quota.native, values))
            else:
                empty.append(f"{address} of {read_quota.native}; it has no config")
    others = (resource.type for resource in resources if resource.type not in _TERRAFORM_QUOTAS)
    return Export(_TERRAFORM, quotas, [*empty, *_no_quotas(others)])


class _Value(BaseModel):
    key: str
    values: float


class _Quota(BaseModel):
    entity: list[_Part] = Field(min_length=1)
    values: list[_Value] | None = None


class _Described(BaseModel):
    quotas: list[_Quota] = []


def _of_rpk(documents: Sequence[Any], mistakes: Mistakes, _tenant_label: str | None) -> Export:
    given = documents[0].get("quotas")
    keys = {str(key) for one in (given if isinstance(given, list) else ()) if isinstance(one, dict) for key in one}
    if more := keys - {*_Quota.model_fields}:
        msg = f"quotas have {', '.join(sorted(more))}, which rpk does not write"
        raise _of_kquota(msg)
    read = _checked(_Described, documents[0], mistakes) or _Described()
    quotas = [
        NativeQuota(
            NativeEntity.of((part.type, None if part.name == DEFAULT else part.name) for part in quota.entity),
            {value.key: value.values for value in quota.values or ()},
        )
        for quota in read.quotas
    ]
    return Export(_RPK, quotas)


_FORMS: Final[Mapping[str, Callable[[Sequence[Any], Mistakes, str | None], Export]]] = {
    "kind": _of_strimzi,
    "format_version": _of_terraform,
    "terraform_version": _of_terraform,
    "quotas": _of_rpk,
}
"""A key of the first document -> what reads the form."""


def _checked(model: type[Model], document: Any, mistakes: Mistakes) -> Model | None:
    try:
        return model.model_validate(document)
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            mistakes.at(*error["loc"]).add(f"{error['msg']}; got {str(error['input'])[:_SHOWN_LENGTH]}")
        return None


def _given(values: _Numbers | None) -> dict[str, float]:
    return {key: value for key, value in (values or {}).items() if value is not None}


def _no_quotas(kinds: Iterable[str]) -> list[str]:
    counts = Counter(kinds)
    each = ", ".join(f"{kind} {counts[kind]}" for kind in sorted(counts))
    return [f"{each}; not quotas"] if counts else []
