"""What MkDocs does with the pages of docs/ besides: it names this file in mkdocs.yml.

README.md is the first page, and llms.txt is served as it is, with the addresses of the site. What can be read from the
code is not written by hand: commands, tables of settings, metrics, failpoints and views, fields of topics and tables.
"""

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
_PROGRAMS: Final = {
    "job": "The job",
    "meter": "A meter",
    "gate": "The gate",
    "brokers": "The sync",
}
_LIMITS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "pattern": "must match `{}`",
}
_ITEM: Final = re.compile(r"^( *)(\*|\d+\.) ")
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File  # type: ignore[import-not-found]  # noqa: PLC0415 - only in MkDocs's own environment

    made = {"index.md": (ROOT / "README.md").read_text("utf-8")}
    made |= {"bench/runs.md": runs_page(), "reference/schemas.md": schemas_page(), "llms.txt": llms_text()}
    made["reference/commands.md"] = _printed("python", "-m", "deploy.site.commands")
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


_MADE_PAGES: Final = """
## Made of the program

- [Commands](reference/commands.html): every command with its help, arguments and flags
- [Topics and tables](reference/schemas.html): headers, settings and fields
- [Newest runs](bench/runs.html): what each benchmark printed
"""


def llms_text() -> str:
    """llms.txt, with the addresses of the site, and the pages that are made for it."""
    text = (ROOT / "llms.txt").read_text("utf-8").replace("(README.md)", "(index.html)")
    return re.sub(r"\(docs/([^()]+)\.md\)", r"(\1.html)", text) + _MADE_PAGES


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page as Python-Markdown reads it: with tables, plain fences, lists of four spaces, links inside the site."""
    name = page.file.src_uri
    lines = [
        re.sub(r"^( *```\w+) .*$", r"\1", line) if is_code else _LINK.sub(lambda found: _link(found, name), line)
        for line, is_code in _indented(with_tables(markdown))
    ]
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


def _link(found: re.Match[str], name: str) -> str:
    """A link of README.md or of a page of docs/; what lies elsewhere in the checkout is named, and no link."""
    picture, words, target = found.groups()
    path, hash_sign, anchor = target.partition("#")
    if "://" in target or not path or name.startswith("reference/"):
        return found[0]
    folder = ROOT if name == "index.md" else (ROOT / "docs" / name).parent
    place = (folder / path).resolve()
    if not place.is_relative_to(ROOT / "docs"):
        if place == ROOT / "README.md":
            return f"[{words}](index.md{hash_sign}{anchor})"
        return words if words.startswith("`") else f"{words} (`{place.relative_to(ROOT)}`)"
    if name != "index.md":
        return found[0]
    return f"{picture}[{words}]({place.relative_to(ROOT / 'docs')}{hash_sign}{anchor})"


def with_tables(page: str) -> str:
    """The page with its tables, each where `<!-- NAME -->` stands."""
    return re.sub(rf"<!-- ({'|'.join(TABLES)}) -->", lambda found: TABLES[found[1]](), page)


def _table(heads: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Names and what each means, under these headings."""
    lines = (f"| `{name}` | {' | '.join(more)} |" for name, *more in rows)
    return "\n".join([f"| {heads} |", "|" + " --- |" * (heads.count("|") + 1), *lines, ""])


def _literal(path: str, name: str) -> Any:
    """What a module gives to a name."""
    for node in ast.parse((ROOT / path).read_text("utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                return ast.literal_eval(node.value)
    raise LookupError(name)


def views_table() -> str:
    """The views of deploy/sql, with their comments."""
    texts = [(ROOT / "deploy" / "sql" / name).read_text("utf-8") for name in ("views.sql", "quota_history.sql")]
    found = re.findall(r"CREATE OR REPLACE VIEW (\w+)\nCOMMENT '((?:[^']|'')*)'", "\n".join(texts))
    return _table("view | what it shows", found)


def metrics_tables() -> str:
    """A table for each program: the metrics that its code names, with their help."""
    parts = []
    for folder, program in _PROGRAMS.items():
        named: dict[str, str] = {}
        for path in sorted((ROOT / "pipeline" / folder).rglob("*.py")):
            named |= metrics_of(path.read_text("utf-8"))
        parts.append(f"### {program}\n\n{_table('metric | meaning', sorted(named.items()))}")
    return "\n".join(parts)


def metrics_of(source: str) -> dict[str, str]:
    """Name and help of each metric of a module: two strings one after the other, or the help given to a name before."""
    prefix = next(iter(re.findall(r'f"(kquota_[a-z]+_)\{', source)), "kquota_")
    pairs = re.findall(r'"([a-z_]+)",\s+"([A-Z0-9][^"]*\.)"', source)
    pairs += [pair[::-1] for pair in re.findall(r'= "([^"]+\.)"\n\s+[^"]*"(kquota_\w+)", \w+', source)]
    return {name if name.startswith("kquota_") else prefix + name: what for name, what in pairs}


def settings_tables() -> str:
    """One table for the settings that stand alone, and one for each branch: as `kquota config schema` has them."""
    schema = json.loads(_printed("kquota", "config", "schema"))
    branches = {
        name: schema["$defs"][field["$ref"].rpartition("/")[2]]
        for name, field in schema["properties"].items()
        if "$ref" in field
    }
    alone = {name: field for name, field in schema["properties"].items() if name not in branches}
    top = {"description": "They stand at the top of the file.", "properties": alone}
    parts = []
    for title, model in {"Of the job": top, **{f"`[{name}]`": model for name, model in branches.items()}}.items():
        rows = [(name, _default(field), _meaning(field)) for name, field in model["properties"].items()]
        parts.append(f"### {title}\n\n{model.get('description', '')}\n\n{_table('key | default | meaning', rows)}")
    return "\n".join(parts)


def _printed(program: str, *arguments: str) -> str:
    """What a program of the checkout's environment prints."""
    command = [str(ROOT / os.environ.get("VENV", ".venv") / "bin" / program), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    empty = "empty" if field.get("type") == "object" else "null"
    return empty if value is None else f"`{json.dumps(value)}`"


def _meaning(field: Mapping[str, Any]) -> str:
    about, kinds = field.get("description", ""), [field, *field.get("anyOf", ())]
    more = [text.format(kind[key]) for kind in kinds for key, text in _LIMITS.items() if key in kind]
    words = [word for kind in kinds for word in kind.get("enum", ())]
    if words and not any(word in about for word in words):
        also = ["milliseconds above 0"] if any(kind.get("type") == "integer" for kind in kinds) else []
        more.append(f"one of {', '.join([*words, *also])}")
    return "; ".join([about, *more]).replace("|", "\\|")


def runs_page() -> str:
    """A list of what `python -m bench --report` has written."""
    reports = sorted((ROOT / "docs" / "bench").glob("*.md"))
    rows = [f"| [{path.stem}]({path.name}) | {path.read_text('utf-8').splitlines()[2]} |" for path in reports]
    return "\n".join(["# Newest runs", "", "| benchmark | what it measures |", "| --- | --- |", *rows, ""])


def schemas_page() -> str:
    """The headers of each topic, and the fields of every JSON schema."""
    import yaml  # noqa: PLC0415 - MkDocs brings it

    lines = ["# Topics and tables", "", "Made of `schemas/asyncapi.yaml` and `schemas/json`.", "", "## Topics", ""]
    document = yaml.safe_load((ROOT / "schemas" / "asyncapi.yaml").read_text("utf-8"))
    for channel in document["channels"].values():
        settings = channel.get("bindings", {}).get("kafka", {}).get("topicConfiguration", {})
        lines += [f"### `{channel['address']}`", "", channel["description"], ""]
        lines += [*(f"* `{name}={value}`" for name, value in settings.items()), ""]
        lines += [_fields("header", message.get("headers", {})) for message in channel.get("messages", {}).values()]
    records = {"throttle_record": "A throttle record", "usage_event": "A usage event"}
    files = {path.name.split(".")[0]: path for path in sorted((ROOT / "schemas" / "json").glob("*.schema.json"))}
    for name in sorted(files, key=lambda name: name not in records):
        schema = json.loads(files[name].read_text("utf-8"))
        title = records.get(name, f"Table `{name}`")
        lines += [f"## {title}", "", schema.get("description", ""), "", _fields("field", schema)]
    return "\n".join(lines)


def _fields(what: str, schema: Mapping[str, Any]) -> str:
    rows = []
    for name, field in schema.get("properties", {}).items():
        kinds = " or ".join(_type(kind) for kind in field.get("anyOf", [field]))
        must = " (required)" if name in schema.get("required", ()) else ""
        meaning = " ".join(field.get("description", "").split()).replace("|", "\\|")
        rows.append((name, f"{kinds}{must}", field.get("x-unit", ""), meaning))
    return _table(f"{what} | type | unit | meaning", rows) if rows else ""


def _type(schema: Mapping[str, Any]) -> str:
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return ", ".join(f"`{value}`" for value in values) or str(schema.get("type", "object"))


TABLES: Final = {
    "settings": settings_tables,
    "variables": lambda: _table(
        "variable | meaning", _literal("pipeline/settings/model.py", "OTHER_VARIABLES").items()
    ),
    "failpoints": lambda: _table("name | the job dies when", _literal("pipeline/failpoints.py", "FAILPOINTS").items()),
    "views": views_table,
    "metrics": metrics_tables,
}
"""By the name that stands in a page: `<!-- NAME -->`."""
