"""Settings: defaults < file < environment < flags; every mistake at once with its place; no secret is printed.

A variable that begins with KQUOTA_ and is none of kquota's is refused, and the nearest one is named.
"""

from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.settings.model import Settings, SparkSettings, load_settings, origins, unknown_variables
from tests.pipeline.cli.running import kquota

BAD = Path(__file__).with_name("bad")


def toml(folder: Path, text: str) -> Path:
    file = folder / "kquota.toml"
    file.write_text(text)
    return file


def test_one_branch_comes_from_file_environment_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = toml(tmp_path, '[kafka.client]\n"file.only" = "1"\nboth = "1"\n[sync]\nusers = ["a", "b"]\n')
    monkeypatch.setenv("KQUOTA_KAFKA__CLIENT", '{"both": "2", "variable.only": "2"}')
    monkeypatch.setenv("KQUOTA_SYNC", '{"users": ["c"], "period_ms": 500}')
    monkeypatch.setenv("KQUOTA_SYNC__PERIOD_MS", "600")
    settings = load_settings(file, {"kafka": {"client": {"flag.only": "3"}}})
    client = {name: value.get_secret_value() for name, value in settings.kafka.client.items()}
    assert client == {"file.only": "1", "both": "2", "variable.only": "2", "flag.only": "3"}
    assert (settings.sync.users, settings.sync.period_ms) == (("c",), 600)
    assert load_settings(file, {"sync": {"period_ms": 700}}).sync.period_ms == 700, "flags win"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong_type", "'stream.trigger_ms' must be a valid integer, unable to parse string as an integer; got 'soon'"),
        ("below_range", "'engine.num_samples' must be greater than or equal to 1; got 0"),
        ("unknown_key", "'kafka.usage_topics' is not a setting; the nearest is kafka.usage_topic"),
        (
            "unknown_cap",
            "'engine.producer_byte_rate_cap' must be sample_window, window, none or milliseconds above 0; got 'minute'",
        ),
        (
            "same_topic_twice",
            "the three topics of 'kafka' are not different: quota.throttle.v1, quota.throttle.v1, quota.marker.v1",
        ),
        ("bad_job_name", "'job' string should match pattern '^[a-z0-9][a-z0-9-]{0,47}$'; got 'My Job'"),
    ],
)
def test_a_bad_file_is_refused_with_place_key_and_rule(name: str, message: str) -> None:
    file = BAD / f"{name}.toml"
    with pytest.raises(UsageError) as refused:
        load_settings(file)
    assert refused.value.message == f"{file}: {message}"


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UsageError, match=r"no_toml\.toml"):
        load_settings(BAD / "no_toml.toml")


def test_all_mistakes_are_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = toml(tmp_path, "jobb = 'x'\n[engine]\nnum_samples = 99\n")
    monkeypatch.setenv("KQUOTA_STREAM__TRIGGER_MS", "often")
    with pytest.raises(UsageError) as refused:
        load_settings(file, {"log_level": "LOUD"})
    places = {
        place: refused.value.message.count(f"{place}: ") for place in (str(file), "KQUOTA_STREAM__TRIGGER_MS", "flag")
    }
    assert places == {str(file): 2, "KQUOTA_STREAM__TRIGGER_MS": 1, "flag": 1}


def test_entries_added_to_spark_conf_do_not_replace_those_that_are_set() -> None:
    spark = SparkSettings.model_validate({"conf": {"spark.a": "set", "spark.b": "b"}, "master": "local[3]"})
    added = spark.with_default_conf({"spark.a": "default", "spark.c": "c"})
    assert added.plain_conf() == {"spark.a": "set", "spark.b": "b", "spark.c": "c"}
    assert added.master == "local[3]"


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41b", "a[b", "a]b", "a\\b"])
def test_tables_in_a_folder_that_delta_takes_for_another_one_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with pytest.raises(UsageError, match=r"'tables.root' .* contains .*, which Delta takes") as refused:
        load_settings(None, {"tables": {"root": str(folder / "tables")}})
    assert str(folder) in str(refused.value)
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match=r"'tables.root'"):
        load_settings()


@pytest.mark.parametrize("root", ["tables of João's 100% team", "s3://bucket/a%41b", "a+b (1), c;d: ~e*"])
def test_tables_in_any_other_folder_are_taken(root: str) -> None:
    assert load_settings(None, {"tables": {"root": root}}).tables.root == root


def test_without_anything_given_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings() == Settings()
    file = toml(tmp_path, "job = 'mine'\n[stream]\ntrigger_ms = 100\n")
    assert load_settings(file, {"job": None, "stream": {"trigger_ms": None}}).job == "mine", "flags not given"
    monkeypatch.setenv("KQUOTA_STREAM__TRIGGER_MS", "200")
    assert origins(file) == {"job": str(file), "stream.trigger_ms": "KQUOTA_STREAM__TRIGGER_MS"}


def test_no_secret_is_printed(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        '[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "TOPSECRET"\n'
        '"spark.driver.extraJavaOptions" = "-Djavax.net.ssl.keyStorePassword=TOPSECRET"\n'
        '[kafka.client]\n"sasl.jaas.config" = "password=TOPSECRET"\n',
    )
    settings = load_settings(file)
    assert settings.spark.plain_conf()["spark.hadoop.fs.s3a.secret.key"] == "TOPSECRET"
    assert "TOPSECRET" not in repr(settings) + settings.model_dump_json()
    for output in ("table", "json", "yaml"):
        answer = kquota("config", "show", "--config", str(file), "-o", output)
        assert answer.exit_code == 0
        assert "spark.conf.spark.hadoop.fs.s3a.secret.key" in answer.stdout
        assert "TOPSECRET" not in answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[spark]\nconf = "TOPSECRET"\n', "'spark.conf"),
        ('[spark]\nconf = { "fs.key" = ["TOPSECRET"] }\n', "'spark.conf"),
        (
            '[kafka.clients]\n"sasl.jaas.config" = "TOPSECRET"\n',
            "'kafka.clients' is not a setting; the nearest is kafka.",
        ),
    ],
)
def test_a_value_that_is_refused_and_may_be_secret_is_not_printed(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        load_settings(toml(tmp_path, text))
    assert told in str(refused.value)
    assert "TOPSECRET" not in str(refused.value)


def test_a_mistyped_variable_is_refused_and_the_nearest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KQUOTA_TABLE__ROOT", "KQUOTA_STREAM__TRIGER_MS", "KQUOTA_XYZZY"):
        monkeypatch.setenv(name, "TOPSECRET")
    with pytest.raises(UsageError) as refused:
        load_settings()
    assert refused.value.message == (
        "KQUOTA_STREAM__TRIGER_MS: unknown variable; the nearest is KQUOTA_STREAM__TRIGGER_MS; "
        "KQUOTA_TABLE__ROOT: unknown variable; the nearest is KQUOTA_TABLES__ROOT; "
        "KQUOTA_XYZZY: unknown variable"
    )


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        *(("KQUOTA_JOB__NAME", False), ("KQUOTA_STREAM__TRIGGER_MS__X", False), ("KQUOTA_SUPPORT", False)),
        *(("KQUOTA_KAFKA__CLIENT__sasl.mechanism", True), ("KQUOTA_SPARK__CONF__x", True), ("PATH", True)),
        ("kquota_stream__trigger_ms", True),
        *((f"KQUOTA_{one}", True) for one in ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_8787_TCP_ADDR")),
        *((f"KQUOTA_GATE_{one}", True) for one in ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_8787_TCP")),
    ],
)
def test_settings_entries_and_what_kubernetes_sets_for_a_service_are_known(name: str, is_known: bool) -> None:
    assert (unknown_variables([name]) == {}) is is_known
