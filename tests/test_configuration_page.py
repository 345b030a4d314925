"""What the site makes of the code has every setting, command and metric; the sample of a settings file is one."""

import re
from pathlib import Path

from deploy.site.commands import commands_page
from deploy.site.hook import ROOT, with_tables
from pipeline.cli.main import _COMMANDS, Commands, Group
from pipeline.settings.model import Settings, load_settings, origins, variable_of
from tests.pages.blocks import blocks_of

PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_site_has_every_setting_and_every_command() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", with_tables("<!-- settings -->"), re.MULTILINE))
    branches = [field.annotation for field in Settings.model_fields.values()]
    keys = {key for branch in branches for key in getattr(branch, "model_fields", ())}
    assert len(keys) > 40
    assert keys <= rows

    def paths(commands: Commands, begin: str = "kquota") -> set[str]:
        below = {name: one for name, one in commands.items() if isinstance(one, Group)}
        groups = (paths(one.commands, f"{begin} {name}") for name, one in below.items())
        return {f"{begin} {name}" for name in commands.keys() - below}.union(*groups)

    assert set(re.findall(r"^## `(.+)`$", commands_page(), re.MULTILINE)) == paths(_COMMANDS)


def test_the_site_has_every_metric_that_an_alert_or_a_board_names() -> None:
    named = set(re.findall(r"^\| `(kquota_\w+)` \| \S", with_tables("<!-- metrics -->"), re.MULTILINE))
    files = ("prometheus/rules.yml", "grafana/kquota.json", "grafana/kquota-team.json")
    asked = set(re.findall(r"\bkquota_[a-z_]+", "".join((ROOT / "deploy" / name).read_text("utf-8") for name in files)))
    asked -= {"kquota_docs", "kquota_alertmanager"}
    assert {name for name in asked if not {name, re.sub("_(total|bucket|sum|count)$", "", name)} & named} == set()


def test_the_sample_is_a_settings_file_and_the_page_names_its_variables(tmp_path: Path) -> None:
    (sample,) = (block.text for block in blocks_of(PAGE) if block.language == "toml")
    file = tmp_path / "kquota.toml"
    file.write_text(sample, encoding="utf-8")
    settings = load_settings(file)
    defaults = Settings().model_dump()
    for key in (key for key in origins(file) if not key.startswith("kafka.client")):
        value, default = settings.model_dump(), defaults
        for part in key.split("."):
            value, default = value[part], default[part]
        assert value != default, f"{key} of the sample is the default"
    assert variable_of("stream.trigger_ms") in PAGE
