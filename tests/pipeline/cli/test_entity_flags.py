"""One entity, one client and one file are named in every spelling by every command that takes them."""

import json
from pathlib import Path

import pytest

from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.cli.running import Answer, kquota, new_tables
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row

PAIR = (
    "--user alice --client-id etl",
    "--client etl --user alice",
    "--entity-type users --entity-name alice --entity-type clients --entity-name etl",
)
DEFAULT_PAIR = (
    "--user-defaults --client-defaults",
    "--entity-type users --entity-default --entity-type clients --entity-default",
)
USER = ("--user alice", "--entity-type users --entity-name alice")
QUOTAS = (("alice", "etl"), ("alice", "<default>"), ("alice", ""), ("bob", ""), ("", "etl"), ("<default>", "<default>"))

QUOTAS_OF_BOB = "quotas:\n- entity: [{type: user, name: bob}]\n  values: [{key: producer_byte_rate, value: '7'}]\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Tables with `QUOTAS`, and one decision on alice/etl and one on bob, who has no client-id."""
    rates = {"producer_byte_rate": 1_000.0}
    job = KeptJob(str(tmp_path_factory.mktemp("tables")), *(QuotaChange(*entity, rates) for entity in QUOTAS))
    for user, client_id in (("alice", "etl"), ("bob", "")):
        job.batch([usage_row(job.clock.wall_ms, user=user, client_id=client_id, produced_bytes=50_000)])
    job.flush()
    return job.root


def described(root: str, flags: str, *command: str) -> set[tuple[str, str]]:
    answer = kquota("quotas", *(command or ("describe",)), *flags.split(), "-o", "json", "--tables", root)
    assert answer.exit_code in {0, 3}, answer.stderr
    return {(row["user"], row["client_id"]) for row in json.loads(answer.stdout)}


@pytest.mark.parametrize("flags", PAIR)
def test_one_entity_is_described_in_every_spelling(flags: str, root: str) -> None:
    assert described(root, flags) == described(root, flags, "at", "-0s") == {("alice", "etl")}


@pytest.mark.parametrize("flags", DEFAULT_PAIR)
def test_the_default_entity_is_described_in_every_spelling(flags: str, root: str) -> None:
    assert described(root, flags) == {("<default>", "<default>")}


@pytest.mark.parametrize("flags", USER)
def test_a_user_alone_is_no_pair(flags: str, root: str) -> None:
    assert described(root, flags) == {("alice", "")}


@pytest.mark.parametrize("flags", [*PAIR, *DEFAULT_PAIR])
@pytest.mark.parametrize("verb", [("alter", "--add-config", "producer_byte_rate=5"), ("delete",)])
def test_an_edit_names_its_entity_in_every_spelling(verb: tuple[str, ...], flags: str, root: str) -> None:
    answer = kquota("quotas", *verb, *flags.split(), "--dry-run", "-o", "json", "--tables", root)
    (change,) = json.loads(answer.stdout)["changes"]
    assert (change["user"], change["client_id"]) == (("alice", "etl") if flags in PAIR else ("<default>", "<default>"))


@pytest.mark.parametrize("names", ["alice etl", "alice --client-id etl", *PAIR])
def test_a_client_is_explained_and_resolved_in_every_spelling(names: str, root: str) -> None:
    explained = kquota("throttles", "explain", *names.split(), "-o", "json", "--tables", root)
    (document,) = json.loads(explained.stdout)
    assert (document["decision"]["user"], document["decision"]["client_id"]) == ("alice", "etl")
    resolved = kquota("quotas", "effective", *names.split(), "-o", "json", "--tables", root)
    (document,) = json.loads(resolved.stdout)
    assert (document["user"], document["client_id"]) == ("alice", "etl")


@pytest.mark.parametrize("names", [("bob", ""), ("--user", "bob", "--client-id", ""), ("bob", "--client-id", "")])
def test_a_client_may_have_no_client_id(names: tuple[str, ...], root: str) -> None:
    (document,) = json.loads(kquota("throttles", "explain", *names, "-o", "json", "--tables", root).stdout)
    assert (document["decision"]["user"], document["decision"]["client_id"]) == ("bob", "")
    (document,) = json.loads(kquota("quotas", "effective", *names, "-o", "json", "--tables", root).stdout)
    assert (document["user"], document["client_id"]) == ("bob", "")


def test_a_decision_is_found_by_a_client_id_alone(root: str) -> None:
    found = kquota("throttles", "explain", "--client-id", "etl", "-o", "json", "--tables", root).stdout
    assert json.loads(found)[0]["decision"]["user"] == "alice"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("quotas delete", "At least one entity type must be specified. Fix: name one: --user, --client-id"),
        ("quotas effective", "name a user"),
        ("quotas effective alice --user bob", "USER is given twice: alice, and bob with --user"),
        ("quotas effective --entity-type users", "there are fewer names than types"),
        ("throttles explain", "name a decision or a client"),
        ("throttles explain alice etl --client x", "CLIENT_ID is given twice: etl, and x with --client-id"),
        ("throttles explain --user=", "--user is empty"),
    ],
)
def test_a_refusal_names_the_flag(line: str, told: str, root: str) -> None:
    answer = kquota(*line.split(), "--tables", root)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert told in answer.stderr


def read_quotas(*command: str, tmp_path: Path) -> Answer:
    file = tmp_path / "quotas.yaml"
    file.write_text(QUOTAS_OF_BOB)
    return kquota(*command, str(file), "--tables", new_tables(tmp_path))


@pytest.mark.parametrize("option", ["-f", "--file"])
@pytest.mark.parametrize("command", [("apply",), ("import", "--no-confirm")])
def test_a_file_of_quotas_is_read_with_f(command: tuple[str, ...], option: str, tmp_path: Path) -> None:
    assert read_quotas("quotas", *command, option, tmp_path=tmp_path).exit_code == 0


def test_a_file_of_values_and_files_to_simulate_are_read_with_f(tmp_path: Path) -> None:
    (tmp_path / "values").write_text("producer_byte_rate=7\n")
    alter = ("quotas", "alter", "--user", "bob", "-f", str(tmp_path / "values"), "--tables", new_tables(tmp_path))
    assert kquota(*alter).exit_code == 0
    examples = Path(__file__).parents[3] / "examples" / "simulate"
    answer = kquota("simulate", str(examples / "events.jsonl"), "-f", str(examples / "quotas.yaml"))
    assert answer.exit_code == 0
    assert kquota("simulate", "-f", str(examples / "events.jsonl"), "-f", str(examples / "quotas.yaml")) == answer


def test_what_if_reads_its_candidate_with_f(root: str, tmp_path: Path) -> None:
    (tmp_path / "quotas.yaml").write_text(QUOTAS_OF_BOB)
    span = ("--from", "usage", "--since", "2023-11-14T22:00:00", "--until", "2023-11-15T00:00:00")
    answer = kquota("what-if", "-f", str(tmp_path / "quotas.yaml"), *span, "--tables", root)
    assert answer.exit_code == 0, answer.stderr
