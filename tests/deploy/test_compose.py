"""The compose file and what it mounts, against published schemas and the programs that read them."""

import json
from pathlib import Path

import yaml

from tests.deploy.checkers import checker, of_the_system, run
from tests.deploy.commands import DEPLOY, compose_file

FOLDER = DEPLOY / "compose"


def test_the_schema_of_compose_allows_the_file() -> None:
    done = run(checker("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", FOLDER / "compose.yaml")
    assert done.returncode == 0, done.stdout


def test_what_services_wait_for_mount_and_read_is_there() -> None:
    whole = compose_file()
    for service in whole["services"].values():
        assert set(service.get("depends_on", ())) <= set(whole["services"])
        assert set(service.get("secrets", ())) <= set(whole["secrets"])
        named = [volume.split(":")[0] for volume in service.get("volumes", ())]
        assert [name for name in named if name not in whole["volumes"] and not (FOLDER / name).is_file()] == []
    build = whole["services"]["job"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "image" / "Dockerfile"


def test_nothing_runs_as_root_or_can_gain_rights() -> None:
    for service in compose_file()["services"].values():
        if service["image"].startswith("kquota:"):
            assert service["cap_drop"] == ["ALL"]
            assert service["read_only"] is True


def test_promtool_accepts_the_configuration_of_prometheus(tmp_path: Path) -> None:
    promtool = of_the_system("promtool", "prometheus")
    text = (FOLDER / "prometheus.yml").read_text("utf-8")
    (tmp_path / "rules.yml").symlink_to(DEPLOY / "prometheus" / "rules.yml")
    token = tmp_path / "gate-token"
    token.write_text("0", "utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/gate-token", str(token)), "utf-8")
    done = run(promtool, "check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_gets_the_dashboard_and_its_prometheus() -> None:
    (provider,) = yaml.safe_load((FOLDER / "grafana" / "dashboards.yaml").read_text("utf-8"))["providers"]
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasource.yaml").read_text("utf-8"))["datasources"]
    mounts = dict(volume.split(":")[:2] for volume in compose_file()["services"]["grafana"]["volumes"])
    assert mounts["../grafana/kquota.json"].rpartition("/")[0] == provider["options"]["path"]
    board = json.loads((DEPLOY / "grafana" / "kquota.json").read_text("utf-8"))
    (variable,) = board["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", source["type"])
    assert source["url"] == "http://prometheus:9090"


def test_the_secrets_are_made_once(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    script.write_bytes((FOLDER / "secrets.sh").read_bytes())
    assert run("/bin/sh", script).stdout
    made = {path.name: path.read_text("utf-8") for path in (tmp_path / "secrets").iterdir()}
    assert made.keys() == {Path(one["file"]).name for one in compose_file()["secrets"].values()}
    assert {len(secret) for secret in made.values()} == {32}
    assert run("/bin/sh", script).stdout == ""
    assert made == {path.name: path.read_text("utf-8") for path in (tmp_path / "secrets").iterdir()}
