"""`kquota simulate`: the example of the pages, on the lines of the job."""

import json
from pathlib import Path

import pytest

from tests.pipeline.cli.running import kquota


def test_the_answer_is_the_same_beside_a_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "kquota.toml"
    settings.write_text("[stream]\ntrigger_ms = 250\n")
    plain = kquota("simulate", *FILES)
    monkeypatch.setenv("KQUOTA_CONFIG", str(settings))
    assert kquota("simulate", *FILES) == plain
    assert kquota("simulate", *FILES, "--config", str(settings)) != plain


EXAMPLE = Path(__file__).parents[3] / "examples" / "simulate"
FILES = str(EXAMPLE / "quotas.yaml"), str(EXAMPLE / "events.jsonl")


def test_the_example_shows_a_throttle_a_renewal_a_release_and_a_shadow() -> None:
    answer = kquota("simulate", *FILES, "-o", "json")
    assert answer.exit_code == 0
    (document,) = json.loads(answer.stdout)
    assert {record["cause"] for record in document["records"]} == {"violation", "extended", "renewed", "expired"}
    clients = {(row["user"], row["client_id"]): row for row in document["clients"]}
    assert clients["bob", "app"]["throttles"] == 0
    assert clients["carol", "web"]["throttles"] > 0
    assert clients["dave", "report"]["throttles"] == 0 < clients["dave", "report"]["shadowed"]
    first = kquota("simulate", FILES[1], FILES[0]).stdout.splitlines()[0]
    assert "  throttle alice/etl producer_byte_rate O 1." in first


@pytest.mark.parametrize("name", ["events.jsonl", "quotas.yaml"])
def test_one_kind_of_file_alone_is_wrong_usage(name: str) -> None:
    answer = kquota("simulate", str(EXAMPLE / name))
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "usage events, and one with quotas" in " ".join(answer.stderr.split())
