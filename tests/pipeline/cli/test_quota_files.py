"""`kquota quotas export|apply|import`: an export can be read again, apply is declarative, import asks the brokers."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from pipeline.brokers.native import NativeQuotas
from pipeline.demo.broker import EmbeddedBroker
from pipeline.tables.quotas.edit import QuotaValues
from pipeline.tables.quotas.files import applied, from_text, to_document
from tests.pipeline.brokers.quota_broker import access_to, await_values, clear, client, ip, pair, user
from tests.pipeline.cli.kafka_configs import OURS, KafkaConfigs, configs
from tests.pipeline.cli.running import Answer, kquota, new_tables

RPK = """
{"quotas": [
  {"entity": [{"name": "etl", "type": "client-id"}, {"name": "alice", "type": "user"}],
   "values": [{"key": "consumer_byte_rate", "values": "2048"}, {"key": "producer_byte_rate", "values": "1048576"}]},
  {"entity": [{"name": "<default>", "type": "client-id"}], "values": [{"key": "producer_byte_rate", "values": "12.0"}]}
]}
"""


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A table with alice/etl in shadow mode and a quota of bob's."""
    folder = new_tables(tmp_path / "tables")
    pair = ("--user", "alice", "--client", "etl")
    values = "producer_byte_rate=5,request_percentage=7,mode=shadow,owner=team-a"
    kquota("quotas", "alter", *pair, "--add-config", values, "--tables", folder)
    kquota("quotas", "alter", "--user", "bob", "--add-config", "producer_byte_rate=1e6,note=why", "--tables", folder)
    return folder


def quotas_of(text: str) -> Sequence[QuotaValues]:
    return from_text(text).quotas or []


def described(root: str) -> list[str]:
    return kquota("quotas", "describe", "--tables", root).stdout.splitlines()


BOB = "Quota configs for user-principal 'bob' are producer_byte_rate=1000000.0, note=why"
ALICE = (
    "Quota configs for user-principal 'alice', client-id 'etl' are consumer_byte_rate=2048.0, "
    "producer_byte_rate=1048576.0, mode=shadow, owner=team-a"
)
DEFAULT = "Quota configs for the default client-id are producer_byte_rate=12.0"


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_an_export_reads_back_as_the_same_table(root: str, output: str, tmp_path: Path) -> None:
    exported = kquota("quotas", "export", "-o", output, "--tables", root)
    assert exported.exit_code == 0
    (tmp_path / "quotas").write_text(exported.stdout)
    again = kquota("quotas", "apply", "-f", str(tmp_path / "quotas"), "--prune", "--exit-code", "--tables", root)
    assert (again.exit_code, again.stdout) == (0, "")
    elsewhere = new_tables(tmp_path / "elsewhere")
    kquota("quotas", "apply", "-f", "-", "--tables", elsewhere, stdin=exported.stdout)
    assert described(elsewhere) == described(root)


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_an_empty_file_deletes_all_only_with_allow_empty(dry_run: tuple[str, ...], root: str, tmp_path: Path) -> None:
    before, file = described(root), tmp_path / "empty"
    file.write_text("quotas: []\n")
    delete_all = ("quotas", "apply", "--prune", "-f", str(file), *dry_run, "--tables", root)
    refused = kquota(*delete_all)
    assert (refused.exit_code, refused.stdout, described(root)) == (5, "", before)
    assert "--allow-empty" in refused.stderr
    allowed = kquota(*delete_all, "--allow-empty")
    assert (allowed.exit_code, allowed.stdout.count("remove  ")) == (0, 6)
    assert described(root) == (before if dry_run else [])
    assert kquota(*delete_all).exit_code == (5 if dry_run else 0), "an empty table stays empty without the flag"


@pytest.mark.parametrize(("stdin", "exit_code"), [(RPK, 1), ("quotas: []", 0), ("quotas: 1", 5)])
def test_a_dry_run_with_exit_code_tells_whether_anything_differs(stdin: str, exit_code: int, root: str) -> None:
    before = described(root)
    check = ("quotas", "apply", "-f", "-", "--dry-run", "--exit-code", "--tables")
    assert kquota(*check, root, stdin=stdin).exit_code == exit_code
    assert described(root) == before
    assert kquota(*check, f"{root}/no", stdin=RPK).exit_code == 2, "1 means different, so trouble must not be 1"


def test_a_file_that_is_missing_is_named_with_files_like_it(root: str, tmp_path: Path) -> None:
    (tmp_path / "quotas.yaml").touch()
    answer = kquota("quotas", "apply", "-f", f"{tmp_path}/quota.yaml", "--tables", root)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert f"the folder is {tmp_path}; it has quotas.yaml" in answer.stderr


@pytest.mark.parametrize(("value", "bound"), [("12", 12.0), ('"12"', 12.0), ("1.5e3", 1500.0), ("1e3", 1000.0)])
def test_a_value_is_a_number_or_a_text_of_one(value: str, bound: float) -> None:
    (quota,) = quotas_of((QUOTA % "").replace("values: 1}", f"value: {value}}}"))
    assert quota["producer_byte_rate"] == bound


@pytest.mark.parametrize(("bound", "text"), [(12.0, "12"), (1e18, "1" + "0" * 18), (0.5, "0.5"), (1e-7, "0.0000001")])
def test_a_value_is_written_without_exponent(bound: float, text: str) -> None:
    row = {"user": "a", "client_id": "", "mode": "enforce", "owner": None, "note": None}
    rates = {"producer_byte_rate": bound, "consumer_byte_rate": None, "request_percentage": None}
    assert to_document([{**row, **rates}])["quotas"][0]["values"] == [{"key": "producer_byte_rate", "values": text}]


def test_a_label_that_is_not_named_stays_and_null_deletes_it() -> None:
    (stored,) = applied([], quotas_of(QUOTA % ", mode: shadow, owner: team-a"), prune=False)
    (kept,) = applied([stored], quotas_of(QUOTA % ""), prune=False)
    (cleared,) = applied([stored], quotas_of(QUOTA % ", owner: null, mode: enforce"), prune=False)
    assert (kept["mode"], kept["owner"]) == ("shadow", "team-a")
    assert (cleared["mode"], cleared["owner"]) == ("enforce", None)


QUOTA = "quotas: [{entity: [{name: a, type: user}], values: [{key: producer_byte_rate, values: 1}]%s}]"


def test_an_export_is_rpks_with_what_kafka_does_not_have_beside_it(root: str) -> None:
    pair, bob = yaml.safe_load(kquota("quotas", "export", "--tables", root).stdout)["quotas"]
    values = [{"key": "producer_byte_rate", "values": "5"}, {"key": "request_percentage", "values": "7"}]
    entity = [{"name": "etl", "type": "client-id"}, {"name": "alice", "type": "user"}]
    assert pair == {"entity": entity, "values": values, "mode": "shadow", "owner": "team-a"}
    assert bob["values"] == [{"key": "producer_byte_rate", "values": "1000000"}]


def test_apply_is_one_commit_of_what_the_file_names_and_prune_deletes_the_rest(root: str) -> None:
    def newest() -> dict[str, Any]:
        (row,) = json.loads(kquota("quotas", "history", "-n", "1", "-o", "json", "--tables", root).stdout)
        return dict(row)

    before = newest()["version"]
    assert kquota("quotas", "apply", "-f", "-", "--tables", root, stdin="quotas: []").exit_code == 0
    assert newest()["version"] == before, "a file without quotas changes nothing without --prune"
    done = kquota("quotas", "apply", "-f", "-", "-o", "wide", "--reason", "from git", "--tables", root, stdin=RPK)
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == ["action", "add", *["alter"] * 3]
    assert described(root) == [DEFAULT, ALICE, BOB]
    assert (newest()["version"], newest()["reason"]) == (before + 1, "from git")
    kquota("quotas", "apply", "-f", "-", "--prune", "--tables", root, stdin=RPK)
    assert described(root) == [DEFAULT, ALICE]


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


@pytest.fixture(scope="module")
def cluster(quota_broker: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    with NativeQuotas(access_to(quota_broker)) as native:
        assert native.alter(QUOTAS) == []
        await_values(native, QUOTAS)
        yield quota_broker
        clear(native)


def configs_of(root: str) -> list[str]:
    return sorted(map(configs, described(root)))


def run(cluster: EmbeddedBroker, root: str, *arguments: str) -> Answer:
    address = ("--bootstrap-server", cluster.bootstrap_servers)
    return kquota("quotas", "import", *address, *arguments, "--tables", root)


@pytest.mark.broker
def test_a_new_table_has_the_quotas_that_kafka_configs_describes(
    cluster: EmbeddedBroker, kafka_configs: KafkaConfigs, tmp_path: Path
) -> None:
    root = new_tables(tmp_path / "tables")
    assert run(cluster, root).exit_code == 0
    kafkas = [
        configs(line.replace("controller_mutation_rate=5.0, ", "")) for line in kafka_configs.described(cluster, *OURS)
    ]
    assert configs_of(root) == sorted(kafkas)


@pytest.mark.broker
def test_an_import_is_one_edit_that_keeps_labels_and_other_quotas(cluster: EmbeddedBroker, root: str) -> None:
    before = configs_of(root)
    dry = run(cluster, root, "--dry-run", "-o", "json")
    assert (dry.exit_code, configs_of(root)) == (0, before)
    assert dry.stderr.splitlines()[2:4] == LEFT_OUT
    assert (run(cluster, root, "--if-version", "1").exit_code, configs_of(root)) == (4, before)
    done = run(cluster, root, "-o", "json", "--reason", "from Kafka")
    assert json.loads(done.stdout)["changes"] == json.loads(dry.stdout)["changes"]
    assert (
        "Quota configs for user-principal 'alice', client-id 'etl' are consumer_byte_rate=2000000.0, mode=shadow, "
        "owner=team-a, producer_byte_rate=1000000.0"
    ) in configs_of(root)
    assert configs(BOB) in configs_of(root)
    assert len(configs_of(root)) == 6
    (newest,) = json.loads(kquota("quotas", "history", "-n", "1", "-o", "json", "--tables", root).stdout)
    assert newest["reason"] == "from Kafka"
    again = run(cluster, root)
    assert (again.exit_code, again.stdout) == (0, "")
    assert f"quotas v{newest['version']}, nothing to change" in again.stderr


STRIMZI: Final = Path(__file__).parents[1] / "brokers" / "exports" / "strimzi.yaml"


@pytest.mark.parametrize("file", [str(STRIMZI), "-"])
def test_a_file_of_another_tool_is_imported_without_a_cluster(file: str, root: str) -> None:
    take_over = ("quotas", "import", "-f", file, "--tables", root)
    before, text = described(root), STRIMZI.read_text()
    dry = kquota(*take_over, "--dry-run", stdin=text)
    assert (dry.exit_code, described(root)) == (0, before)
    done = kquota(*take_over, stdin=text)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == dry.stdout.splitlines()[: len(done.stdout.splitlines())]
    added = [
        "Quota configs for user-principal 'CN=orders' are consumer_byte_rate=2097152.0, producer_byte_rate=1048576.0, "
        "request_percentage=55.0",
        "Quota configs for user-principal 'reports' are consumer_byte_rate=4194304.0",
    ]
    assert sorted(map(configs, described(root))) == sorted(map(configs, [*before, *added]))
    assert done.stderr.splitlines()[:4] == [
        f"{file}: Strimzi, entities with quotas 2",
        "every bound × 1 (--scale keep)",
        "not imported: user-principal 'CN=orders': controller_mutation_rate=10; kquota does not meter it",
        "not imported: KafkaTopic 1; not quotas",
    ]


def test_a_label_of_a_file_puts_its_users_into_tenants_that_exist(root: str) -> None:
    def users() -> list[list[str]]:
        tenants = json.loads(kquota("tenants", "describe", "-o", "json", "--tables", root).stdout)
        return [tenant["user_patterns"] for tenant in tenants]

    team = ("--add-config", "producer_byte_rate=10MB/s", "--add-user", "bi-*")
    kquota("tenants", "alter", "team-bi", *team, "--tables", root)
    labelled = ("quotas", "import", "-f", str(STRIMZI), "--tenant-label", "team", "--tables", root)
    dry = kquota(*labelled, "--dry-run")
    assert (dry.exit_code, users()) == (0, [["bi-*"]])
    assert kquota(*labelled, "--if-version", "3").exit_code == 0, "the version is that of the quotas"
    assert users() == [["bi-*", "reports", "CN=nightly"]]
    again = kquota(*labelled)
    assert (again.stdout, users()) == ("", [["bi-*", "reports", "CN=nightly"]])
    left_out = "not imported: CN=orders of tenant team-orders, which does not exist. Fix: "
    (told,) = [line for line in again.stderr.splitlines() if "team-orders" in line]
    assert told.startswith(left_out)
    assert kquota("tenants", *shlex.split(told.partition("kquota tenants ")[2]), "--tables", root).exit_code == 0
    assert users() == [["bi-*", "reports", "CN=nightly"], ["CN=orders"]]
    refused = kquota("quotas", "import", "--tenant-label", "team", "--tables", root)
    assert (refused.exit_code, "brokers keep no labels" in refused.stderr) == (2, True)


def test_quotas_of_a_file_are_not_stored_if_its_users_are_of_another_tenant(root: str) -> None:
    for name, pattern in (("team-bi", "bi-*"), ("team-x", "reports")):
        config = ("--add-config", "producer_byte_rate=10MB/s", "--add-user", pattern)
        kquota("tenants", "alter", name, *config, "--tables", root)
    before = described(root)
    refused = kquota("quotas", "import", "-f", str(STRIMZI), "--tenant-label", "team", "--tables", root)
    assert (refused.exit_code, described(root)) == (5, before)
    assert "user pattern 'reports' is in the tenants 'team-bi' and 'team-x'" in refused.stderr
    assert refused.stderr.endswith("kquota tenants alter team-x --remove-user reports\n")


FILES: Final = Path(__file__).parent / "bad_quota_files"
MISTAKES: Final[dict[str, list[str]]] = json.loads(FILES.with_suffix(".json").read_text())


def test_every_bad_file_is_refused_as_a_whole_with_every_place(root: str) -> None:
    assert sorted(path.name for path in FILES.iterdir()) == sorted(MISTAKES)
    before = described(root)
    for name, mistakes in MISTAKES.items():
        refused = kquota("quotas", "apply", "-f", str(FILES / name), "--prune", "--tables", root)
        assert (refused.exit_code, refused.stdout) == (5, "")
        assert f"nothing was changed: {'; '.join(mistakes)}. Fix: " in refused.stderr, name
    assert described(root) == before
