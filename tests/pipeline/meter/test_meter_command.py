"""`kquota meter` finds the cluster as every other command does: by its settings, and flags win."""

from pathlib import Path

import pytest

from tests.pipeline.cli.running import Answer, kquota

REFUSED_PROTOCOL = "'security.protocol' 'NOPE' is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Settings of a cluster that cannot be signed in to."""
    file = tmp_path / "kquota.toml"
    file.write_text('[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[kafka.client]\n"security.protocol" = "NOPE"\n')
    return file


def metered(folder: Path, *options: str) -> Answer:
    """What the command answers, with a state that it refuses before it connects."""
    state = folder / "state.json"
    state.write_text("")
    return kquota("meter", "request-log", "request.log", "--broker-id", "1", "--state-file", str(state), *options)


def test_the_way_to_sign_in_comes_from_the_settings(settings: Path, tmp_path: Path) -> None:
    answer = metered(tmp_path, "--config", str(settings))
    assert (answer.exit_code, answer.stderr) == (
        2,
        f"kquota: the settings under kafka.client: {REFUSED_PROTOCOL}. Fix: correct these entries in the "
        "settings under kafka.client\n",
    )


def test_the_file_of_the_command_line_wins_and_is_named(settings: Path, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT\n")
    given = ("--config", str(settings), "--command-config", str(file))
    assert metered(tmp_path, *given).exit_code == 5, "only the state is refused"
    file.write_text("security.protocol=NOPE\n")
    assert metered(tmp_path, *given).stderr.startswith(f"kquota: {file}: {REFUSED_PROTOCOL}. Fix: ")


def test_the_environment_names_the_settings_too(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KQUOTA_CONFIG", str(settings))
    assert "the settings under kafka.client: " in metered(tmp_path).stderr
    monkeypatch.delenv("KQUOTA_CONFIG")
    monkeypatch.setenv("KQUOTA_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert metered(tmp_path).exit_code == 5, "only the state is refused"


def test_a_key_that_is_no_setting_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kquota.toml"
    file.write_text('[kafka]\nbootstrap_servers = "127.0.0.1:1"\nusage_topics = "mine"\n')
    monkeypatch.setenv("KQUOTA_NOT_THERE", "mine")
    answer = metered(tmp_path, "--config", str(file))
    assert answer.exit_code == 2
    assert f"{file}: 'kafka.usage_topics' is not a setting; the nearest is kafka.usage_topic; " in answer.stderr
    assert "KQUOTA_NOT_THERE: unknown variable" in answer.stderr


def test_a_topic_that_has_another_use_is_refused(tmp_path: Path) -> None:
    """The flag becomes a setting, and is checked with the others."""
    answer = metered(tmp_path, "--bootstrap-server", "127.0.0.1:1", "--topic", "quota.throttle.v1")
    assert answer.exit_code == 2
    assert "the three topics of 'kafka' are not different: quota.throttle.v1, quota.throttle.v1" in answer.stderr


def test_without_an_address_it_says_how_to_give_one(tmp_path: Path) -> None:
    answer = metered(tmp_path)
    assert answer.exit_code == 2
    assert answer.stderr.startswith(
        "kquota: the address of the Kafka cluster, 'kafka.bootstrap_servers', is not set. Fix: pass"
    )


@pytest.mark.usefixtures("impatient")
def test_the_address_comes_from_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "kquota.toml"
    file.write_text('[kafka]\nbootstrap_servers = "127.0.0.1:1"\n')
    given = ("--config", str(file), "--state-file", str(tmp_path / "state.json"))
    answer = kquota("meter", "request-log", "request.log", "--broker-id", "1", *given)
    assert answer.exit_code == 6
    assert answer.stderr.startswith("kquota: no Kafka broker answers at 127.0.0.1:1: connection refused")


def test_a_time_zone_that_does_not_exist_is_refused_before_it_connects(tmp_path: Path) -> None:
    answer = metered(tmp_path, "--bootstrap-server", "127.0.0.1:1", "--time-zone", "Nowhere")
    assert answer.exit_code == 2
    assert "use a name of the tz database" in " ".join(answer.stderr.split())
