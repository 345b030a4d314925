import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app

EXAMPLE = Path(__file__).parents[3] / "examples" / "simulate"


def simulate(*words: str) -> tuple[int, str, str]:
    answer = CliRunner().invoke(app, ["simulate", *words])
    return answer.exit_code, answer.stdout, answer.stderr


def test_the_example_shows_a_throttle_a_renewal_a_release_and_a_shadow() -> None:
    code, text, told = simulate(str(EXAMPLE / "quotas.yaml"), str(EXAMPLE / "events.jsonl"), "-o", "json")
    (document,) = json.loads(text)
    assert code == 0
    assert {record["cause"] for record in document["records"]} == {"violation", "renewed", "expired"}
    clients = {(row["user"], row["client_id"]): row for row in document["clients"]}
    assert clients["bob", "app"]["throttles"] == 0
    assert clients["carol", "web"]["throttles"] > 0
    assert clients["dave", "report"]["throttles"] == 0 < clients["dave", "report"]["shadowed"]
    assert told.endswith("60 micro-batches of 500 ms, 4 quotas\n")


def test_the_answer_is_the_same_beside_a_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "kquota.toml"
    settings.write_text("[stream]\ntrigger_ms = 250\n")
    files = str(EXAMPLE / "quotas.yaml"), str(EXAMPLE / "events.jsonl")
    plain = simulate(*files)
    monkeypatch.setenv("KQUOTA_CONFIG", str(settings))
    assert simulate(*files) == plain
    assert simulate(*files, "--config", str(settings)) != plain


def test_lines_are_those_of_the_job() -> None:
    _, text, _ = simulate(str(EXAMPLE / "events.jsonl"), str(EXAMPLE / "quotas.yaml"))
    first = text.splitlines()[0]
    assert first.startswith("00:00:")
    assert "  throttle alice/etl producer_byte_rate O 1." in first
    assert " > T 1.0 MB/s (level 1, quotas v1) W 1" in first


def test_quotas_in_rpks_form_are_read(tmp_path: Path) -> None:
    entity = [{"name": "alice", "type": "user"}]
    quota = {"entity": entity, "values": [{"key": "producer_byte_rate", "values": "1000"}]}
    quotas, events = tmp_path / "quotas.json", tmp_path / "events.jsonl"
    quotas.write_text(json.dumps({"quotas": [quota]}), encoding="utf-8")
    event = {"event_time_ms": 1_700_000_000_000, "user": "alice", "client_id": "", "produced_bytes": 50_000}
    events.write_text(json.dumps(event), encoding="utf-8")
    _, text, _ = simulate(str(quotas), str(events))
    assert "throttle alice/ producer_byte_rate" in text


def test_one_kind_of_file_alone_is_wrong_usage() -> None:
    for name in ("events.jsonl", "quotas.yaml"):
        code, _, told = simulate(str(EXAMPLE / name))
        assert code == 2
        assert "usage events, and one with quotas" in " ".join(told.split())


def test_it_loads_neither_spark_nor_a_kafka_client() -> None:
    program = (
        "import sys; from pipeline.cli.main import app\n"
        f"try: app(['simulate', {str(EXAMPLE / 'events.jsonl')!r}, {str(EXAMPLE / 'quotas.yaml')!r}])\n"
        "except SystemExit: pass\n"
        "print(sorted({'pyspark', 'delta', 'kafka', 'deltalake'} & set(sys.modules)), file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stderr.splitlines()[-1] == "[]"
