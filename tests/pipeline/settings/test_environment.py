"""A variable that begins with KQUOTA_ and is none of kquota's is refused, and the nearest one is named."""

import re
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.settings.loading import OTHER_VARIABLES, load_settings, setting_keys, unknown_variables, variable_of
from tests.pipeline.cli.running import kquota

ROOT = Path(__file__).parents[3]
PLACES = ("pipeline", "tests", "bench", "examples", "deploy", "docs", "README.md", "Makefile")
# Names that tests and pages make up, and the beginning of them all.
MADE_UP = {"KQUOTA_STREAM__TRIGER_MS", "KQUOTA_NOT_THERE", "KQUOTA_", "KQUOTA"}


def test_a_mistyped_variable_is_refused_and_the_nearest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_TABLE__ROOT", "/data")
    monkeypatch.setenv("KQUOTA_STREAM__TRIGER_MS", "often")
    with pytest.raises(UsageError) as refused:
        load_settings()
    assert refused.value.message == (
        "KQUOTA_STREAM__TRIGER_MS: unknown variable; the nearest is KQUOTA_STREAM__TRIGGER_MS; "
        "KQUOTA_TABLE__ROOT: unknown variable; the nearest is KQUOTA_TABLES__ROOT"
    )


def test_a_variable_like_no_other_is_refused_without_a_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_XYZZY", "1")
    answer = kquota("config", "show")
    assert answer.exit_code == 2
    assert "KQUOTA_XYZZY: unknown variable. Fix: " in answer.stderr


def test_mistakes_of_file_and_environment_are_told_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kquota.toml"
    file.write_text("jobb = 'x'\n")
    monkeypatch.setenv("KQUOTA_LOGLEVEL", "x")
    with pytest.raises(UsageError) as refused:
        load_settings(file)
    assert all(f"{place}: " in refused.value.message for place in (file, "KQUOTA_LOGLEVEL"))


def test_the_value_of_an_unknown_key_is_not_printed(tmp_path: Path) -> None:
    file = tmp_path / "kquota.toml"
    file.write_text('[kafka.clients]\n"sasl.jaas.config" = "TOPSECRET"\n')
    with pytest.raises(UsageError) as refused:
        load_settings(file)
    assert refused.value.message == (f"{file}: 'kafka.clients' is not a setting; the nearest is kafka.client")


def test_every_setting_and_every_branch_has_a_variable() -> None:
    assert unknown_variables(map(variable_of, setting_keys())) == {}
    assert {"stream", "stream.trigger_ms", "kafka.client", "job"} <= set(setting_keys())


@pytest.mark.parametrize(
    "name", ["KQUOTA_KAFKA__CLIENT__sasl.mechanism", "KQUOTA_SPARK__CONF__x", "kquota_stream__trigger_ms", "PATH"]
)
def test_entries_of_any_name_lower_case_and_the_variables_of_others_are_allowed(name: str) -> None:
    assert unknown_variables([name]) == {}


@pytest.mark.parametrize("service", ["KQUOTA", "KQUOTA_GATE"])
@pytest.mark.parametrize(
    "variable", ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8787_TCP", "PORT_8787_TCP_ADDR"]
)
def test_what_kubernetes_sets_for_a_service_is_no_mistake(service: str, variable: str) -> None:
    assert unknown_variables([f"{service}_{variable}"]) == {}


@pytest.mark.parametrize("name", ["KQUOTA_JOB__NAME", "KQUOTA_STREAM__TRIGGER_MS__X", "KQUOTA_SUPPORT"])
def test_what_only_looks_like_an_allowed_one_is_refused(name: str) -> None:
    assert list(unknown_variables([name])) == [name]


def test_every_variable_that_the_project_names_is_known() -> None:
    files = [path for place in PLACES for path in (ROOT / place, *(ROOT / place).rglob("*"))]
    named = {
        name
        for path in files
        if path.suffix in {".py", ".sh", ".md", ".toml", ".yaml", ""} and path.is_file() and path != Path(__file__)
        for name in re.findall(r"\bKQUOTA_[A-Z0-9_]*", path.read_text(encoding="utf-8", errors="ignore"))
    }
    assert set(OTHER_VARIABLES) <= named
    assert set(unknown_variables(named)) - MADE_UP == set()
