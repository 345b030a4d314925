"""Quotas that Strimzi, kafka-configs, Terraform and rpk print, in the shapes that their documentation has."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from pipeline.brokers.exports import read_export
from pipeline.brokers.native import NativeEntity, imported
from pipeline.errors import Refused, UsageError
from pipeline.tables.quotas.files import QuotaFileRefused
from tests.pipeline.brokers.quota_broker import client, ip, pair, user
from tests.pipeline.cli.kafka_configs import golden

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
EXPORTS: Final = Path(__file__).parent / "exports"

DEFAULT_USER: Final = {user(None): {PRODUCE: 1048576.0, FETCH: 2097152.0}}
ETL: Final = {client("etl"): {PRODUCE: 2500000.0, FETCH: 5000000.0, REQUEST: 50.5}}
CASES: Final[dict[str, tuple[str, dict[NativeEntity, dict[str, float]], list[str]]]] = {
    "strimzi.yaml": (
        "Strimzi",
        {
            user("CN=orders"): {
                PRODUCE: 1048576.0,
                FETCH: 2097152.0,
                REQUEST: 55.0,
                "controller_mutation_rate": 10.0,
            },
            user("reports"): {FETCH: 4194304.0},
        },
        [
            "user-principal 'CN=orders': controller_mutation_rate=10; kquota does not meter it",
            "KafkaTopic 1; not quotas",
        ],
    ),
    "kafka_configs.txt": (
        "kafka-configs",
        {
            user("alice"): {PRODUCE: 1024.0, "controller_mutation_rate": 5.0},
            user(None): {FETCH: 77.0, REQUEST: 50.5},
            user("ann b,c=d"): {PRODUCE: 7.0},
            client("these are old"): {PRODUCE: 1e7, FETCH: 2048.0},
            pair(None, None): {FETCH: 10485760.0},
            ip("10.0.0.7"): {"connection_creation_rate": 20.0},
        },
        [
            "ip '10.0.0.7': connection_creation_rate=20; kquota has no quotas for ip",
            "user-principal 'alice': controller_mutation_rate=5; kquota does not meter it",
            "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-512=iterations=8192; not a quota",
        ],
    ),
    "terraform_state.json": (
        "Terraform",
        {
            **DEFAULT_USER,
            **ETL,
            pair(None, "iam-service"): {PRODUCE: 4194304.0},
            ip("10.0.0.7"): {"connection_creation_rate": 20.0},
        },
        [
            "ip '10.0.0.7': connection_creation_rate=20; kquota has no quotas for ip",
            "kafka_topic 1; not quotas",
        ],
    ),
    "terraform.tfstate": ("Terraform", {**DEFAULT_USER, **ETL}, ["kafka_topic 1; not quotas"]),
    "rpk.json": (
        "rpk",
        {
            client(None): {PRODUCE: 1048576.0},
            client("etl"): {FETCH: 2048.0, PRODUCE: 4096.0, "controller_mutation_rate": 2.5},
            NativeEntity.of([("client-id-prefix", "streams-")]): {PRODUCE: 140000.0},
        },
        [
            "client-id 'etl': controller_mutation_rate=2.5; kquota does not meter it",
            "client-id-prefix 'streams-': producer_byte_rate=140000; kquota has no quotas for client-id-prefix; "
            "a tenant with the client-id pattern streams-* bounds these clients together",
        ],
    ),
}


def text_of(name: str) -> str:
    return (EXPORTS / name).read_text()


def quotas_of(text: str) -> dict[NativeEntity, Mapping[str, float]]:
    return {quota.entity: quota.values for quota in read_export(text, "the file").quotas}


@pytest.mark.parametrize("name", CASES)
def test_each_tools_quotas_are_read_and_what_has_no_meaning_here_is_named(name: str) -> None:
    tool, quotas, left_out = CASES[name]
    export = read_export(text_of(name), name)
    assert (export.tool, quotas_of(text_of(name))) == (tool, quotas)
    assert [*imported(export.quotas, 1)[1], *export.left_out] == left_out


def test_every_line_that_kafka_configs_was_recorded_with_is_read() -> None:
    kinds = ("users", "clients", "users --entity-type clients")
    asked = {f"--describe --entity-type {kind}" for kind in kinds}
    # An entity is described several times, while it is altered: its last line counts.
    newest = {
        line.rpartition(" are ")[0].removeprefix("Quota configs for "): line
        for one in golden()
        if one["line"] in asked
        for line in one["stdout"]
    }
    read = quotas_of("\n".join(newest.values()))
    assert len(read) == len(newest) > 10
    for entity, values in read.items():
        pairs = (each.split("=") for each in newest[str(entity)].rpartition(" are ")[2].split(", "))
        assert values == {key: float(value) for key, value in pairs}


def test_resources_of_kubectl_are_a_list_in_yaml_or_json() -> None:
    users = list(yaml.safe_load_all(text_of("strimzi.yaml")))
    listed = {"apiVersion": "v1", "kind": "List", "items": users}
    for text in (yaml.safe_dump(listed), json.dumps(listed)):
        assert quotas_of(text) == CASES["strimzi.yaml"][1]


def test_a_plan_of_terraform_is_read_as_it_is_planned() -> None:
    state = json.loads(text_of("terraform_state.json"))
    before = {"root_module": {"resources": [{"type": "kafka_quota", "name": "was", "values": {}}]}}
    plan = {"format_version": "1.2", "prior_state": {"values": before}, "planned_values": state["values"]}
    assert quotas_of(json.dumps(plan)) == CASES["terraform_state.json"][1]


def test_a_label_names_the_tenant_of_a_user_with_or_without_a_quota() -> None:
    export = read_export(text_of("strimzi.yaml"), "users", "team")
    assert export.tenants == {"team-orders": ["CN=orders"], "team-bi": ["reports", "CN=nightly"]}
    assert read_export(text_of("strimzi.yaml"), "users").tenants == {}
    assert read_export(text_of("strimzi.yaml"), "users", "taem").left_out[-1] == "label taem, which no KafkaUser has"


@pytest.mark.parametrize("name", ["kafka_configs.txt", "terraform_state.json", "rpk.json"])
def test_a_label_is_refused_for_a_file_without_labels(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is of {CASES[name][0]}, which keeps no labels"):
        read_export(text_of(name), name, "team")


def test_a_quota_of_terraform_without_config_is_named() -> None:
    quota = {"type": "kafka_quota", "name": "q", "values": {"entity_type": "user", "entity_name": "a"}}
    export = read_export(json.dumps({"values": {"root_module": {"resources": [quota]}}, "format_version": "1"}), "tf")
    assert (export.quotas, export.left_out) == ([], ["kafka_quota.q of user-principal 'a'; it has no config"])


@pytest.mark.parametrize("text", ['{"format_version": "1.0"}', "{}", '{"version": 4, "terraform_version": "1.9.5"}'])
def test_an_export_may_be_empty(text: str) -> None:
    assert quotas_of(text) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not an export of quotas that kquota can read"),
        ("a: 1", "is not an export of quotas that kquota can read"),
        ("- 1", "is not an export of quotas that kquota can read"),
        ('{"quotas": [{"entity": [], "values": [], "mode": "shadow"}]}', "quotas have mode, which rpk does not write"),
        ("quotas: []\n---\n{kind: Tenant, tenant: a}", "the file has tenants as kquota writes them"),
        ("kind: Tenant\ntenant: a", "the file has tenants as kquota writes them"),
        ('{"quotas": [], "tenants": []}', "the file has tenants as kquota writes them"),
        (
            "".join(
                f"---\n{{kind: KafkaUser, metadata: {{name: a, labels: {{strimzi.io/cluster: {one}}}}}}}\n"
                for one in "xy"
            ),
            "the users are of several clusters: x, y",
        ),
    ],
)
def test_what_is_no_export_of_one_cluster_is_refused(text: str, told: str) -> None:
    with pytest.raises(Refused, match=told) as refused:
        read_export(text, "the file")
    assert ("kquota quotas apply -f FILE" in refused.value.fix) == ("kquota" in told or "rpk" in told)


def strimzi(**quotas: Any) -> str:
    return json.dumps({"kind": "KafkaUser", "metadata": {"name": "a"}, "spec": {"quotas": quotas}})


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (strimzi(producerByteRate="fast"), "[0].spec.quotas.producerByteRate: "),
        ("kind: KafkaUser\nkind: KafkaUser\nmetadata: {name: a}", "'kind' is given 2 times"),
        ("kind: KafkaUser\nmetadata: {labels: {}}", "[0].metadata.name: Field required"),
        (f"{strimzi(producerByteRate=1)}\n---\n{strimzi(producerByteRate=2)}", "neither JSON nor YAML"),
        (f"---\n{strimzi(producerByteRate=1)}\n---\n{strimzi()}\n---\n{strimzi(consumerByteRate=2)}", "'a' is given 2"),
        ('{"quotas": [{"entity": [], "values": []}]}', "quotas[0].entity: "),
        ('{"quotas": [{"entity": [{"name": "a"}]}]}', "quotas[0].entity[0].type: "),
        ("Quota configs for user-principal 'a' are producer_byte_rate=x", "line 1.values.producer_byte_rate: "),
        ('{"format_version": "1.0", "values": {"root_module": {"resources": 7}}}', "values.root_module.resources: "),
        (
            '{"terraform_version": "1", "resources": [{"type": "kafka_quota", "name": "q", "instances": [{}]}]}',
            "kafka_quota.q: ",
        ),
    ],
)
def test_what_is_wrong_in_an_export_is_told_with_its_place(text: str, mistake: str) -> None:
    with pytest.raises(QuotaFileRefused) as refused:
        read_export(text, "the file")
    assert mistake in refused.value.message
    assert "a quota is written like" not in refused.value.fix
