"""`kquota quotas describe|alter` answers as Kafka's own kafka-configs does."""

import re
import shlex
from typing import Any, Final

import pytest

from pipeline.demo.broker import EmbeddedBroker
from tests.pipeline.cli.kafka_configs import KafkaConfigs, command_lines, configs, golden
from tests.pipeline.cli.running import Answer, kquota, new_tables
from tests.waiting import wait_until

# Parts of Kafka's messages about things that kquota does not have.
NOT_OURS: Final = (
    (r" and SCRAM credential", ""),
    (r" using --bootstrap-server", ""),
    (r", brokers or ips$", ""),
    (r"  +", " "),
    (r"\.$", ""),
    (r"one of .*topics, clients, users, .* argument$", "one of users, clients"),
)
EMPTY_NAME: Final = "--alter --entity-type users --entity-name '' --add-config consumer_byte_rate=77"
# Lines where kquota differs on purpose, and its answer; docs/quotas.md says why.
DIFFERENT: Final = {
    EMPTY_NAME: "--entity-name is empty",
    "--alter --user alice --add-config producer_byte_rate=5 --delete-config producer_byte_rate": (
        "--add-config sets and --delete-config deletes producer_byte_rate"
    ),
    "--alter --user alice --add-config controller_mutation_rate=5": "Unexpected config names: controller_mutation_rate",
    "--alter --entity-type topics --entity-name x --add-config producer_byte_rate=5": "Invalid entity type topics",
    "--alter --user fay --delete-config producer_byte_rate,producer_byte_rate": "producer_byte_rate more than once",
    "--alter -user fay -add-config producer_byte_rate=9": "No such option: -u",
    "--alter --user fay --add-config producer_byte_rate=9 again": "Got unexpected extra argument",
    "--alter --user fay --add-config request_percentage=1e19": "Quota request_percentage must be below 1e+19",
    "--describe --user '<default>'": "<default> is reserved for the default entity",
}
# What Kafka refuses and kquota takes. It runs as a dry run, so that later lines find the quotas that Kafka has.
TAKEN: Final = {"--alter --user alice --add-config producer_byte_rate=10MB": "10000000 (10.0 MB/s)"}
# What Kafka takes and kquota refuses, and how to say the same to kquota, so that later lines find the same quotas.
INSTEAD: Final = {EMPTY_NAME: "--alter --user-defaults --add-config consumer_byte_rate=77"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], Answer]]:
    """Kafka's answer and ours to every line. Each line runs on the quotas that the earlier ones left."""
    root = new_tables(tmp_path_factory.mktemp("tables"))
    kquota("quotas", "alter", "--user", "first", "--add-config", "producer_byte_rate=1", "--tables", root)
    kquota("quotas", "delete", "--user", "first", "--tables", root)
    pairs = []
    for kafkas in golden():
        verb, *arguments = shlex.split(kafkas["line"])
        dry_run = ["--dry-run", "-o", "wide"] if kafkas["line"] in TAKEN else []
        pairs.append((kafkas, kquota("quotas", verb.removeprefix("--"), *arguments, *dry_run, "--tables", root)))
        if kafkas["line"] in INSTEAD:
            verb, *arguments = shlex.split(INSTEAD[kafkas["line"]])
            assert kquota("quotas", verb.removeprefix("--"), *arguments, "--tables", root).exit_code == 0
    return pairs


def spoken(error: str) -> str:
    for pattern, text in NOT_OURS:
        error = re.sub(pattern, text, error)
    return error


@pytest.mark.broker
@pytest.mark.usefixtures("native")
def test_the_recorded_answers_are_kafkas_own(quota_broker: EmbeddedBroker, kafka_configs: KafkaConfigs) -> None:
    def answered(line: list[str]) -> dict[str, Any]:
        return sorted_answer(kafka_configs.answer(quota_broker, line))

    for recorded, line in zip(map(sorted_answer, golden()), command_lines(), strict=True):
        if "--describe" in line:
            # The controller answers a change before the broker that describes quotas has heard of it.
            wait_until(lambda line=line, recorded=recorded: answered(line) == recorded, f"{recorded}")  # type: ignore[misc]
        else:
            assert answered(line) == recorded


def sorted_answer(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "stdout": sorted(map(configs, answer["stdout"]))}


def test_answers_are_kafkas_own_except_where_kquota_says_so(answers: list[tuple[dict[str, Any], Answer]]) -> None:
    refused = 0
    for kafkas, ours in answers:
        line = kafkas["line"]
        if line == "--describe":
            assert (ours.exit_code, len(ours.stdout.splitlines())) == (0, 13), "without an entity: every quota"
        elif line in DIFFERENT:
            assert DIFFERENT[line] in ours.stderr
            assert ours.exit_code in {2, 5}
        elif line in TAKEN:
            assert ours.exit_code == 0
            assert TAKEN[line] in ours.stdout
        else:
            assert sorted(map(configs, ours.stdout.splitlines())) == sorted(map(configs, kafkas["stdout"])), line
            if kafkas["error"]:
                refused += 1
                assert spoken(kafkas["error"]).strip() in ours.stderr, line
                assert ours.exit_code in {2, 5}, line
            elif kafkas["exit_code"] == 0:
                assert ours.exit_code == (0 if kafkas["stdout"] else 3), line
    assert refused >= 25
    assert {*DIFFERENT, *TAKEN} <= {kafkas["line"] for kafkas, _ in answers}
