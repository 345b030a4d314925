"""`kquota quotas import --from-cluster`: the quotas of brokers become those of the table, in one edit."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.brokers.native import NativeQuotas
from pipeline.demo.broker import EmbeddedBroker
from tests.pipeline.brokers.quota_broker import access_to, await_values, clear, client, ip, pair, user
from tests.pipeline.cli.kafka_configs import OURS, KafkaConfigs, configs
from tests.pipeline.cli.running import Answer, Terminal, kquota, new_tables

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
QUOTAS = {
    pair("alice", "etl"): {PRODUCE: 1e6, FETCH: 2e6, "controller_mutation_rate": 5.0},
    user("a b"): {REQUEST: 25.5},
    user(None): {REQUEST: 200.0},
    client(None): {PRODUCE: 1e7},
    pair(None, "50%"): {FETCH: 7.0},
    ip("10.0.0.1"): {"connection_creation_rate": 3.0},
}
LEFT_OUT = [
    "not imported: ip '10.0.0.1': connection_creation_rate=3; kquota has no quotas for ip",
    "not imported: user-principal 'alice', client-id 'etl': controller_mutation_rate=5; kquota does not meter it",
]

FIRST_VERSION = 3
"""Of the tables of `root`: they are created in two commits."""


@pytest.fixture(scope="module")
def cluster(quota_broker: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    """A broker with `QUOTAS`."""
    with NativeQuotas(access_to(quota_broker)) as native:
        assert native.alter(QUOTAS) == []
        await_values(native, QUOTAS)
        yield quota_broker
        clear(native)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Tables with a quota of bob's, and one of alice/etl that differs from the cluster's."""
    folder = new_tables(tmp_path / "tables")
    values = f"{PRODUCE}=5,{REQUEST}=7,mode=shadow,owner=team-a"
    kquota("quotas", "alter", "--user", "alice", "--client", "etl", "--add-config", values, "--tables", folder)
    kquota("quotas", "alter", "--user", "bob", "--add-config", f"{PRODUCE}=9,note=why", "--tables", folder)
    return folder


def described(root: str) -> list[str]:
    return sorted(map(configs, kquota("quotas", "describe", "--tables", root).stdout.splitlines()))


def run(cluster: EmbeddedBroker, root: str, *arguments: str, stdin: str | Terminal = "") -> Answer:
    address = ("--bootstrap-server", cluster.bootstrap_servers)
    return kquota("quotas", "import", "--from-cluster", *address, *arguments, "--tables", root, stdin=stdin)


@pytest.mark.broker
def test_a_new_table_has_the_quotas_that_kafka_configs_describes(
    cluster: EmbeddedBroker, kafka_configs: KafkaConfigs, tmp_path: Path
) -> None:
    root = new_tables(tmp_path / "tables")
    assert run(cluster, root, "--no-confirm").exit_code == 0
    kafkas = [
        configs(line.replace("controller_mutation_rate=5.0, ", "")) for line in kafka_configs.described(cluster, *OURS)
    ]
    assert described(root) == sorted(kafkas)


@pytest.mark.broker
def test_what_differs_is_shown_old_and_new_and_labels_and_other_quotas_stay(cluster: EmbeddedBroker, root: str) -> None:
    done = run(cluster, root, "--no-confirm", "-o", "wide", "--reason", "from Kafka")
    assert done.exit_code == 0, done.stderr
    pair_lines = [line.split() for line in done.stdout.splitlines() if "'alice', client-id 'etl'" in line]
    assert [(line[0], *line[5:]) for line in pair_lines] == [
        ("alter", PRODUCE, "5", "B/s", "1000000", "(1.0", "MB/s)"),
        ("alter", FETCH, "2000000", "(2.0", "MB/s)"),
        ("alter", REQUEST, "7", "%"),
    ]
    assert (
        "Quota configs for user-principal 'alice', client-id 'etl' are consumer_byte_rate=2000000.0, mode=shadow, "
        "owner=team-a, producer_byte_rate=1000000.0"
    ) in described(root)
    assert "Quota configs for user-principal 'bob' are note=why, producer_byte_rate=9.0" in described(root)
    assert len(described(root)) == 6
    (newest,) = json.loads(kquota("quotas", "history", "-n", "1", "-o", "json", "--tables", root).stdout)
    assert (newest["version"], newest["reason"]) == (FIRST_VERSION + 1, "from Kafka")


@pytest.mark.broker
def test_the_factor_and_all_that_is_not_imported_are_told(cluster: EmbeddedBroker, root: str) -> None:
    for arguments, scale in (((), "keep"), (("--scale", "keep"), "keep"), (("--scale", "brokers"), "brokers")):
        told = run(cluster, root, "--dry-run", *arguments).stderr.splitlines()
        assert told[:4] == [
            f"{cluster.bootstrap_servers}: brokers 1, entities with quotas 6",
            f"every bound × 1 (--scale {scale})",
            *LEFT_OUT,
        ]
        assert "quotas of other entities, which stay in the table: 1" in told


@pytest.mark.broker
def test_a_dry_run_writes_nothing_and_a_second_import_has_nothing_to_change(cluster: EmbeddedBroker, root: str) -> None:
    before = described(root)
    dry = run(cluster, root, "--dry-run", "-o", "json")
    assert (dry.exit_code, described(root)) == (0, before)
    document = json.loads(dry.stdout)
    assert document["dry_run"] is True
    done = json.loads(run(cluster, root, "--no-confirm", "-o", "json").stdout)
    assert done["changes"] == document["changes"]
    again = run(cluster, root, "--no-confirm")
    assert (again.exit_code, again.stdout) == (0, "")
    assert f"quotas v{FIRST_VERSION + 1}, nothing to change" in again.stderr


@pytest.mark.broker
def test_it_asks_at_a_terminal_and_needs_no_confirm_elsewhere(cluster: EmbeddedBroker, root: str) -> None:
    before = described(root)
    assert (run(cluster, root).exit_code, described(root)) == (2, before)
    refused = run(cluster, root, stdin=Terminal("n\n"))
    assert (refused.exit_code, described(root)) == (1, before)
    assert "Import these quotas?" in refused.stderr
    assert run(cluster, root, stdin=Terminal("y\n")).exit_code == 0
    assert described(root) != before


@pytest.mark.broker
def test_a_version_that_is_another_is_refused_as_for_every_edit(cluster: EmbeddedBroker, root: str) -> None:
    before = described(root)
    assert (run(cluster, root, "--no-confirm", "--if-version", "1").exit_code, described(root)) == (4, before)


@pytest.mark.broker
def test_a_cluster_without_quotas_changes_nothing(cluster: EmbeddedBroker, root: str, tmp_path: Path) -> None:
    with NativeQuotas(access_to(cluster)) as native:
        native.alter({entity: dict.fromkeys(values) for entity, values in QUOTAS.items()})
        await_values(native, {})
        try:
            answer = run(cluster, root, "--no-confirm")
        finally:
            native.alter(QUOTAS)
            await_values(native, QUOTAS)
    assert (answer.exit_code, answer.stdout) == (0, "")
    assert "nothing to change" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give either --from or --from-cluster; neither is given"),
        (("--from", "quotas: []", "--from-cluster"), "give either --from or --from-cluster; both are given"),
        (
            ("--from", "quotas: []", "--scale", "keep"),
            "--scale works only with --from-cluster",
        ),
        (
            ("--from", "quotas: []", "--bootstrap-server", "b:1"),
            "--bootstrap-server works only with --from-cluster",
        ),
        (("--from-cluster", "--scale", "double"), "unknown scale double; use keep, brokers"),
        (("--from-cluster",), "the address of the Kafka cluster, 'kafka.bootstrap_servers', is not set"),
    ],
)
def test_flags_that_do_not_say_what_to_import_are_refused(
    arguments: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    root = new_tables(tmp_path / "tables")
    answer = kquota("quotas", "import", *arguments, "--no-confirm", "--tables", root)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert told in answer.stderr


@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_does_not_answer_ends_with_6(tmp_path: Path) -> None:
    root = new_tables(tmp_path / "tables")
    address = ("--from-cluster", "--bootstrap-server", "127.0.0.1:1", "--no-confirm")
    answer = kquota("quotas", "import", *address, "--tables", root)
    assert (answer.exit_code, answer.stdout) == (6, "")
    assert "no Kafka broker answers at 127.0.0.1:1" in answer.stderr


def test_what_is_wrong_in_client_properties_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    root, file = new_tables(tmp_path / "tables"), tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nsecurity.protocol=NOPE\n")
    arguments = ("--from-cluster", "--command-config", str(file), "--no-confirm")
    answer = kquota("quotas", "import", *arguments, "--tables", root)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"kquota: {file}: 'security.protocol' 'NOPE' is none of ")
