"""What the site makes of the code is complete: settings, variables, commands, metrics, failpoints, views."""

import re
import tomllib
from pathlib import Path

from deploy.site.commands import commands_page
from deploy.site.hook import ROOT, with_tables
from pipeline.failpoints import FAILPOINTS
from pipeline.settings.model import OTHER_VARIABLES, Settings, load_settings, origins, variable_of
from tests.pages.blocks import blocks_of

PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_site_has_every_setting_and_every_variable() -> None:
    page = with_tables(PAGE)
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    branches = [
        field.annotation for field in Settings.model_fields.values() if hasattr(field.annotation, "model_fields")
    ]
    keys = {key for model in branches if model for key in model.model_fields}
    assert len(keys) > 40
    assert rows >= keys
    assert rows >= {"trigger_ms", "min_hold_ms", *OTHER_VARIABLES}
    assert "at least 50" in page
    assert "one of sample_window, window, none, milliseconds above 0" in page


def test_the_site_has_commands_of_each_room_with_arguments_and_flags() -> None:
    page = commands_page()
    for command in ("run", "quotas alter", "throttles explain", "tables create", "meter enable", "jars fetch"):
        assert f"\n## `kquota {command}`\n" in page
    assert "\n| `--entity-type users\\|clients` | Once for each part" in page
    assert "\n| `USER <str>` | The user. [required] |" in page
    assert "\n| `--by <pair\\|user>` | pair:" in page
    assert "records --all and --since show. [default: 50; x>=1] |" in page


def test_the_site_has_every_metric_that_an_alert_or_a_board_names() -> None:
    named = set(re.findall(r"^\| `(kquota_\w+)` \| \S", with_tables("<!-- metrics -->"), re.MULTILINE))
    files = ("prometheus/rules.yml", "grafana/kquota.json")
    asked = set(re.findall(r"\bkquota_[a-z_]+", "".join((ROOT / "deploy" / name).read_text("utf-8") for name in files)))
    asked -= {"kquota_docs", "kquota_alertmanager"}
    assert len(asked) > 40
    assert {name for name in asked if not {name, re.sub("_(total|bucket|sum|count)$", "", name)} & named} == set()


def test_the_site_has_every_failpoint_and_view() -> None:
    assert all(f"| `{name}` | {when} |" in with_tables("<!-- failpoints -->") for name, when in FAILPOINTS.items())
    assert with_tables("<!-- views -->").count("\n| `") == 22


def test_the_sample_is_a_settings_file_and_the_page_names_its_variables(tmp_path: Path) -> None:
    (sample,) = (block.text for block in blocks_of(PAGE) if block.language == "toml")
    file = tmp_path / "kquota.toml"
    file.write_text(sample, encoding="utf-8")
    settings = load_settings(file)
    given = [key for key in origins(file) if not key.startswith("kafka.client")]
    assert len(given) >= 5
    defaults = Settings().model_dump()
    for key in given:
        value, default = settings.model_dump(), defaults
        for part in key.split("."):
            value, default = value[part], default[part]
        assert value != default, f"{key} of the sample is the default"
    assert tomllib.loads(sample)["kafka"]["client"]
    assert variable_of("stream.trigger_ms") in PAGE
