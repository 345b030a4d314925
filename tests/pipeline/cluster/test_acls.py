"""The rights each role needs, and the commands that grant them."""

import json

from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.cluster.acls import ALTER_QUOTAS, DESCRIBE_QUOTAS, ROLES, Acl, Names, acls_of, grant_commands

NAMES = Names("u", "t", "m", "j1")


def test_a_command_grants_all_operations_on_one_resource() -> None:
    acls = [Acl("topic", "t", "Write"), Acl("group", "g", "Read"), Acl("topic", "t", "Read")]
    assert grant_commands(acls, "User:CN=a b", "b:9092") == [
        "kafka-acls --bootstrap-server b:9092 --add --allow-principal 'User:CN=a b' --operation Read --group g",
        "kafka-acls --bootstrap-server b:9092 --add --allow-principal 'User:CN=a b' --operation Read "
        "--operation Write --topic t",
    ]


def test_a_right_on_the_cluster_is_granted_and_told_without_a_name() -> None:
    assert grant_commands([ALTER_QUOTAS, DESCRIBE_QUOTAS], "User:a", "b:9092") == [
        "kafka-acls --bootstrap-server b:9092 --add --allow-principal User:a --operation AlterConfigs "
        "--operation DescribeConfigs --cluster"
    ]
    assert str(ALTER_QUOTAS) == "AlterConfigs on the cluster"


def test_every_role_names_its_own_resources_and_none_twice() -> None:
    for role in ROLES:
        acls = acls_of(role, NAMES)
        assert len(set(acls)) == len(acls) > 0
        assert {acl.name for acl in acls} <= {"u", "t", "m", "kquota-j1", "kquota-meter.prometheus", "kafka-cluster"}
    assert acls_of("meter", NAMES) == (
        Acl("topic", "u", "Write"),
        Acl("topic", "m", "Read"),
        Acl("group", "kquota-meter.prometheus", "Read"),
        Acl("transactional-id", "kquota-meter.prometheus", "Write"),
    )
    assert acls_of("sync", NAMES) == (DESCRIBE_QUOTAS, ALTER_QUOTAS)
    assert acls_of("gate", NAMES) == (Acl("topic", "t", "Read"),)


def test_the_command_line_prints_what_each_role_needs_without_a_cluster() -> None:
    invoke = CliRunner().invoke

    every = invoke(app, ["topics", "check", "--acls", "--bootstrap-server", "b:9092"])
    assert every.exit_code == 0
    assert [line.partition(":")[0] for line in every.stdout.splitlines() if line[0] == "#"] == [
        f"# {role}" for role in ROLES
    ]
    assert "--allow-principal User:kquota-job --operation Write --transactional-id kquota-kquota" in every.stdout

    one = invoke(app, ["topics", "check", "--role", "meter", "--principal", "User:m", "--usage-topic", "u"])
    names = Names("u", "quota.throttle.v1", "quota.marker.v1", "kquota")
    assert one.stdout.splitlines()[1:] == grant_commands(acls_of("meter", names), "User:m", "BROKER:9092")

    rows = json.loads(invoke(app, ["topics", "check", "--acls", "--role", "gate", "-o", "json"]).stdout)
    assert [(row["operation"], row["resource"], row["name"]) for row in rows] == [
        ("Read", "topic", "quota.throttle.v1")
    ]

    unknown = invoke(app, ["topics", "check", "--role", "root"])
    assert "unknown role 'root'; roles are job, meter, gate, operator, import, sync" in str(unknown.exception)
