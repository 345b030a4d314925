"""Makes the pages of the site: `python -m deploy.site FOLDER`.

The pages are those of docs/, with README.md as the first one. What can be read from the code is not written by hand:
tables of settings, metrics, failpoints and views, JSON schemas, the AsyncAPI document and the list of the supported
Python names are made here.
MkDocs turns the folder into HTML (`deploy/site.sh`).
"""

import ast
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipeline.failpoints import FAILPOINTS
from pipeline.settings.loading import OTHER_VARIABLES
from pipeline.settings.model import Settings

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("quota", "purgatory", "schemas", "pipeline.gate", "pipeline.tables.quotas")
"""What is supported is in their `__all__`."""

_PROGRAMS: Final = {
    "The job": ("job",),
    "A meter": ("meter",),
    "The gate": ("gate",),
    "The sync": ("brokers",),
    "The dashboard": ("dashboard",),
}
_LIMITS: Final = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "pattern": "must match `{}`"}
_ITEM: Final = re.compile(r"^( *)(\*|\d+\.) ")
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def main(folder: Path) -> None:
    """Make the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    pages = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.md")}
    pages["index.md"] = (ROOT / "README.md").read_text("utf-8")
    pages = {name: with_tables(text) for name, text in pages.items()}
    pages["bench/runs.md"] = runs_page({name: text for name, text in pages.items() if name.startswith("bench/")})
    pages["reference/api.md"] = api_page()
    pages["reference/schemas.md"] = schemas_page()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(as_site_page(name, text), "utf-8")


# Pages as MkDocs takes them.


def as_site_page(name: str, text: str) -> str:
    """A page of docs/ as Python-Markdown reads it: plain fences, lists of four spaces, links inside the site."""
    start = "" if name == "index.md" else "docs"
    lines = []
    for line, is_code in _indented(text):
        if is_code:
            lines.append(re.sub(r"^( *```\w+) .*$", r"\1", line))
        else:
            lines.append(_LINK.sub(lambda found: _link(found, start, name), line))
    return "\n".join(lines) + "\n"


def _indented(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a fence; what is below a list's item stands four spaces further in."""
    within, more = False, 0
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        item = None if within else _ITEM.match(line)
        if item and not item[1]:
            more = 4 - len(item[0])
        elif line and not line.startswith(" ") and not within:
            more = 0
        moved = bool(more) and line.startswith("  ") and not (item and not item[1])
        yield (" " * more + line if moved else line), within or fence
        within = within != fence


def _link(found: re.Match[str], start: str, name: str) -> str:
    picture, words, target = found.groups()
    path, _, anchor = target.partition("#")
    if "://" in target or not path:
        return found[0]
    base = ROOT / start / (Path(name).parent if start else Path())
    place = (base / path).resolve()
    if place == ROOT / "README.md":
        inside = Path("index.md")
    elif place.is_relative_to(ROOT / "docs") and place.is_file():
        inside = place.relative_to(ROOT / "docs")
    elif name.startswith("reference/") or path.startswith(("reference/", "bench/")):
        return found[0]
    else:
        return words if words.startswith("`") else f"{words} (`{place.relative_to(ROOT)}`)"
    up = "../" * (len(Path(name).parts) - 1)
    return f"{picture}[{words}]({up}{inside.as_posix()}{'#' if anchor else ''}{anchor})"


def runs_page(reports: Mapping[str, str]) -> str:
    """A list of what `python -m bench --report` has written."""
    rows = [
        f"| [{Path(name).stem}]({Path(name).name}) | {text.splitlines()[2]} |" for name, text in sorted(reports.items())
    ]
    return "\n".join(["# Newest runs", "", "| benchmark | what it measures |", "| --- | --- |", *sorted(rows), ""])


# Tables that are made of the code, in place of their names.


def with_tables(page: str) -> str:
    """The page with its tables, each where `<!-- NAME -->` stands."""
    for name, table in TABLES.items():
        mark = f"<!-- {name} -->"
        if mark in page:
            page = page.replace(mark, table())
    return page


def _table(name: str, meaning: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and what each means, under these two headings."""
    lines = (f"| `{one}` | {what} |" for one, what in rows)
    return "\n".join([f"| {name} | {meaning} |", "| --- | --- |", *lines, ""])


def views_table() -> str:
    """The views of deploy/sql, with their comments."""
    texts = [(ROOT / "deploy" / "sql" / name).read_text("utf-8") for name in ("views.sql", "quota_history.sql")]
    found = re.findall(r"CREATE OR REPLACE VIEW (\w+)\nCOMMENT '((?:[^']|'')*)'", "\n".join(texts))
    return _table("view", "what it shows", found)


def metrics_tables() -> str:
    """A table for each program: the metrics that its code names, with their help."""
    lines: list[str] = []
    for program, folders in _PROGRAMS.items():
        paths = [path for folder in folders for path in sorted((ROOT / "pipeline" / folder).rglob("*.py"))]
        named = dict(pair for path in paths for pair in metrics_of(ast.parse(path.read_text("utf-8"))))
        lines += [f"### {program}", "", _table("metric", "meaning", sorted(named.items()))]
    return "\n".join(lines)


def metrics_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and help of each metric of a module: two strings one after the other, the name perhaps without prefix."""
    nodes = list(ast.walk(tree))
    begins = [node.values[0] for node in nodes if isinstance(node, ast.JoinedStr)]
    prefixes = [str(one.value) for one in begins if isinstance(one, ast.Constant)]
    prefix = next((one for one in prefixes if re.fullmatch(r"kquota_[a-z]+_", one)), "")
    given = {
        (node.targets[0].id, node.lineno): node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in nodes:
        parts = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
        if len(parts) < 2 or not (name := _text(parts[0], given)):
            continue
        what = _text(parts[1], given)
        if not what.endswith(".") or not re.fullmatch(r"[a-z_]+", name):
            continue
        if name.startswith("kquota_"):
            yield name, what
        elif prefix and isinstance(node, ast.Tuple):
            yield prefix + name, what


def _text(node: ast.expr, given: Mapping[tuple[str, int], ast.expr]) -> str:
    """A string, or that which was given to a name in the nearest line before."""
    if isinstance(node, ast.Name):
        lines = [line for name, line in given if name == node.id and line <= node.lineno]
        node = given[node.id, max(lines)] if lines else node
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def settings_tables() -> str:
    """One table for the settings that stand alone, and one for each branch."""
    lines: list[str] = []
    branches = {name: field.annotation for name, field in Settings.model_fields.items() if _is_branch(field)}
    models: dict[str, Any] = {"": Settings, **branches}
    for name, model in models.items():
        what = "They stand at the top of the file." if not name else (model.__doc__ or "").strip()
        title = f"`[{name}]`" if name else "Of the job"
        lines += [f"### {title}", "", what, "", "| key | default | meaning |", "| --- | --- | --- |"]
        lines += [_row(key, field) for key, field in model.model_fields.items() if not _is_branch(field)]
        lines.append("")
    return "\n".join(lines)


def _is_branch(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _row(key: str, field: FieldInfo) -> str:
    limits = [
        text.format(value)
        for rule in field.metadata
        for name, text in _LIMITS.items()
        if (value := getattr(rule, name, None)) is not None
    ]
    about = field.description or ""
    if (words := list(_choices(field.annotation))) and not any(word in about for word in words):
        limits.append(f"one of {', '.join(words)}")
    meaning = "; ".join([about, *limits]).replace("|", "\\|")
    return f"| `{key}` | {_shown(field.get_default(call_default_factory=True))} | {meaning} |"


def _choices(annotation: Any) -> Iterator[str]:
    """The words that a setting takes, if it takes only some; for a cap also what else it takes."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        for part in get_args(annotation):
            yield from ["milliseconds above 0"] if part is int and annotation != int | None else _choices(part)


def _shown(default: Any) -> str:
    if default is None:
        return "null"
    if isinstance(default, Mapping):
        return "empty"
    return f"`{default if isinstance(default, int | Path) and not isinstance(default, bool) else json.dumps(default)}`"


# Topics and tables.


def schemas_page() -> str:
    """The AsyncAPI document and every JSON schema."""
    lines = ["# Topics and tables", "", "Made of `schemas/asyncapi.yaml` and `schemas/json`.", "", "## Topics", ""]
    document = yaml.safe_load((ROOT / "schemas" / "asyncapi.yaml").read_text("utf-8"))
    for channel in document["channels"].values():
        lines += [f"### `{channel['address']}`", "", channel["description"], ""]
        settings = channel.get("bindings", {}).get("kafka", {}).get("topicConfiguration", {})
        lines += [f"* `{name}={value}`" for name, value in settings.items()]
        lines.append("")
        for message in channel.get("messages", {}).values():
            headers = message.get("headers", {}).get("properties", {})
            lines += _fields("header", headers, set(message.get("headers", {}).get("required", ())))
    records = {"throttle_record": "A throttle record", "usage_event": "A usage event"}
    files = sorted((ROOT / "schemas" / "json").glob("*.schema.json"))
    for path in sorted(files, key=lambda path: path.name.split(".")[0] not in records):
        name, schema = path.name.split(".")[0], json.loads(path.read_text("utf-8"))
        lines += [f"## {records.get(name, f'Table `{name}`')}", "", schema.get("description", ""), ""]
        lines += _fields("field", schema["properties"], set(schema.get("required", ())))
    return "\n".join(lines)


def _fields(what: str, fields: Mapping[str, Any], required: set[str]) -> list[str]:
    if not fields:
        return []
    rows = [f"| {what} | type | unit | meaning |", "| --- | --- | --- | --- |"]
    for name, field in fields.items():
        kinds = " or ".join(_type(kind) for kind in field.get("anyOf", [field]))
        must = " (required)" if name in required else ""
        meaning = " ".join(field.get("description", "").split()).replace("|", "\\|")
        rows.append(f"| `{name}`{must} | {kinds} | {field.get('x-unit', '')} | {meaning} |")
    return [*rows, ""]


def _type(schema: Mapping[str, Any]) -> str:
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return ", ".join(f"`{value}`" for value in values) or str(schema.get("type", "object"))


# Python.


def api_page() -> str:
    """A directive of mkdocstrings for each supported name."""
    lines = ["# Python", "", "What is supported; everything else may change in any release.", ""]
    for package in PACKAGES:
        path = ROOT.joinpath(*package.split("."), "__init__.py")
        tree = ast.parse(path.read_text("utf-8"))
        what = (ast.get_docstring(tree) or "").partition("\n")[0]
        lines += [f"## `{package}`", "", what, ""]
        lines += [f"::: {package}.{name}\n" for name in supported(tree)]
    return "\n".join(lines)


def supported(tree: ast.Module) -> list[str]:
    """The names in `__all__`."""
    found = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    ]
    return sorted(ast.literal_eval(found[0]), key=str.lower)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "settings": settings_tables,
    "variables": partial(_table, "variable", "meaning", OTHER_VARIABLES.items()),
    "failpoints": partial(_table, "name", "the job dies when", FAILPOINTS.items()),
    "views": views_table,
    "metrics": metrics_tables,
}
"""By the name that stands in a page: `<!-- NAME -->`."""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
