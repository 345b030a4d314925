"""docs/configuration.md has every setting with its default, range and meaning, and every variable; its sample works.

`RENEW_PAGES=1` writes the tables anew.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipeline.settings.loading import OTHER_VARIABLES, load_settings, origins, variable_of
from pipeline.settings.model import Settings
from tests.pages.blocks import blocks_of
from tests.pages.reader import RENEW

PATH = Path(__file__).parents[1] / "docs" / "configuration.md"
BOUNDS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "pattern": "must match `{}`"}


def settings_tables() -> str:
    """One table for the settings that stand alone, and one for each branch."""
    lines: list[str] = []
    models: dict[str, type[BaseModel]] = {"": Settings, **dict(branches())}
    for name, model in models.items():
        what = "They stand at the top of the file." if not name else (model.__doc__ or "").strip()
        title = f"`[{name}]`" if name else "Of the job"
        lines += [f"### {title}", "", what, "", "| key | default | meaning |", "| --- | --- | --- |"]
        lines += [row(key, field) for key, field in model.model_fields.items() if not is_branch(field)]
        lines.append("")
    return "\n".join(lines)


def variables_table() -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in OTHER_VARIABLES.items()]
    return "\n".join(["| variable | meaning |", "| --- | --- |", *rows, ""])


def branches() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in Settings.model_fields.items():
        if is_branch(field):
            model: Any = field.annotation
            yield name, model


def is_branch(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def row(key: str, field: FieldInfo) -> str:
    assert field.description, f"'{key}' must have a description"
    limits = [
        text.format(value)
        for rule in field.metadata
        for name, text in BOUNDS.items()
        if (value := getattr(rule, name, None)) is not None
    ]
    if (words := list(choices(field.annotation))) and not any(word in field.description for word in words):
        limits.append(f"one of {', '.join(words)}")
    meaning = "; ".join([field.description, *limits]).replace("|", "\\|")
    return f"| `{key}` | {shown(field.get_default(call_default_factory=True))} | {meaning} |"


def choices(annotation: Any) -> Iterator[str]:
    """The words that a setting takes, if it takes only some; for a cap also what else it takes."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        for part in get_args(annotation):
            yield from ["milliseconds above 0"] if part is int and annotation != int | None else choices(part)


def shown(default: Any) -> str:
    if default is None:
        return "null"
    if isinstance(default, Mapping):
        return "empty"
    return f"`{default if isinstance(default, int | Path) and not isinstance(default, bool) else json.dumps(default)}`"


@pytest.mark.parametrize(("name", "wanted"), [("settings", settings_tables()), ("variables", variables_table())])
def test_the_page_has_what_the_model_has(name: str, wanted: str) -> None:
    page = PATH.read_text(encoding="utf-8")
    part = re.compile(rf"(<!-- {name} -->\n\n)(.*?)(\n?<!-- end of {name} -->)", re.DOTALL)
    if os.environ.get(RENEW) == "1":
        PATH.write_text(part.sub(lambda found: found[1] + wanted + found[3], page), encoding="utf-8")
        return
    found = part.search(page)
    assert found is not None
    assert found[2].splitlines() == wanted.splitlines()


def test_the_sample_is_a_settings_file_and_the_page_names_its_variables(tmp_path: Path) -> None:
    page = PATH.read_text(encoding="utf-8")
    (sample,) = (block.text for block in blocks_of(page) if block.language == "toml")
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
    assert variable_of("stream.trigger_ms") in page
