"""Quotas and tenants as a file: the JSON and YAML of `rpk cluster quotas`, with mode, owner and note with each quota.

    quotas:
      - entity:
          - {name: etl, type: client-id}
          - {name: alice, type: user}
        values:
          - {key: producer_byte_rate, values: "1048576"}
        mode: shadow

rpk calls the value `values` and writes it as text. `value`, numbers and units (`1MB/s`) are accepted as well. The
default entity is named `<default>`, as in the table and in rpk.

A tenant is a YAML document of its own, after a line `---`, with the columns of the table `tenants`; or, as in JSON, one
of a list `tenants` next to `quotas`:

    kind: Tenant
    tenant: team-a
    user_patterns: [team-a-*]
    producer_byte_rate: 10MB/s
    lend: true
"""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from pipeline.documents import read_text_file
from pipeline.errors import Refused, first_line
from pipeline.tables.quotas.edit import LABELS, QUOTA_ROWS, QuotaValues, RowKind
from pipeline.tables.quotas.tenants import (
    PATTERNS,
    TENANT_MODES,
    TENANT_ROWS,
    new_tenant,
    parse_setting,
    read_tenants,
    tenant_column,
)
from quota.entity import QUOTA_TYPES
from quota.snapshot import MODES, QuotaSnapshot
from quota.units import Mistake, Mistakes, exact_text, parse_bound

ENTITY_TYPES: Final = {"user": "user", "client-id": "client_id"}
"""How rpk calls the parts of an entity -> the column of the table."""


class QuotaFileRefused(Refused):
    """A file does not hold valid quotas or tenants; it has all mistakes, with their places.

    * `rows`: what of the file is not valid.
    * `fix`: how to correct it, after the places.
    """

    def __init__(self, file: str, mistakes: Sequence[Mistake], rows: str = "quotas", fix: str = "") -> None:
        self.mistakes = tuple(mistakes)
        places = "; ".join(map(str, mistakes))
        fixes = "; ".join(["correct these places", *([fix] if fix else [])])
        super().__init__(f"{rows} of {file} are not valid, nothing was changed: {places}", fixes)


def to_document(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Quotas as one document. `mode` is left out if it is enforce, owner and note if they are null."""
    return {"quotas": [_exported(row) for row in rows]}


def to_documents(quotas: Iterable[QuotaValues], tenants: Iterable[QuotaValues], output: str) -> list[dict[str, Any]]:
    """Quotas and tenants as the documents of a file: one in `json`, and in `yaml` one more for each tenant."""
    exported = [{"kind": TENANT} | _exported_tenant(row) for row in tenants]
    document = to_document(quotas)
    if output == "json":
        return [document | ({"tenants": exported} if exported else {})]
    return [document, *exported]


def _exported_tenant(row: QuotaValues) -> dict[str, Any]:
    unset = new_tenant(row["tenant"])
    named = {column: row[column] for column in TENANT_ROWS.columns if row[column] != unset.get(column, ())}
    bounds = {column: exact_text(row[column]) for column in TENANT_ROWS.bounds if column in named}
    lists = {column: list(row[column]) for column in PATTERNS if column in named}
    return {"tenant": row["tenant"], **named, **bounds, **lists}


def _exported(row: Mapping[str, Any]) -> dict[str, Any]:
    # Types and keys in alphabetical order, as rpk writes them.
    entity = [{"name": row[column], "type": kind} for kind, column in sorted(ENTITY_TYPES.items()) if row[column]]
    bounds = ((name, row[name]) for name in sorted(QUOTA_TYPES) if row[name] is not None)
    values = [{"key": name, "values": exact_text(bound)} for name, bound in bounds]
    quota: dict[str, Any] = {"entity": entity, "values": values}
    if row["mode"] != "enforce":
        quota["mode"] = row["mode"]
    return quota | {name: row[name] for name in ("owner", "note") if row[name] is not None}


def applied(
    rows: Sequence[QuotaValues], declared: Iterable[QuotaValues], *, prune: bool, kind: RowKind = QUOTA_ROWS
) -> list[dict[str, Any]]:
    """The rows after the file is applied, sorted by key; `prune` removes the rows that the file does not name.

    A declared quota gets the bounds that the file names and no others; a tenant its patterns, too, and whether it
    lends. Mode, owner and note that the file does not name stay as they are; in a new row they are enforce, null and
    null.

    * `declared`: As `from_text` returns them.
    """
    by_key = {kind.key(row): dict(row) for row in rows}
    wanted = {kind.key(row): row for row in declared}
    kept = {key: row for key, row in by_key.items() if not prune or key in wanted}
    for key, row in wanted.items():
        kept[key] = {**kept.get(key, kind.unset), **row}
    return [kept[key] for key in sorted(kept)]


# Reads JSON or YAML text. A key that is given twice is a mistake; the usual readers would drop the first value.


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the C loader is not always built
    mistakes: Mistakes

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        # Keys are compared as text, before values are made of them: `1` and `"1"` look too alike to be two keys.
        keys = [key.value if isinstance(key, yaml.ScalarNode) else repr(key) for key, _ in node.value]
        _refuse_repeated(keys, self.mistakes, f", from line {node.start_mark.line + 1} on")
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def load_documents(text: str, name: str, mistakes: Mistakes) -> list[Any]:
    """Read JSON if the text begins with a brace, else the documents of YAML; `QuotaFileRefused` if it is neither.

    `mistakes` gets one for each key that a mapping has twice. The last value counts then.
    """
    try:
        return [_json(text, mistakes)] if text.lstrip().startswith("{") else _yaml(text, mistakes)
    except json.JSONDecodeError as exc:
        problem = f"line {exc.lineno}, column {exc.colno}: {exc.msg}"
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        problem = f"line {mark.line + 1}, column {mark.column + 1}: {exc.problem}" if mark else str(exc.problem)
    except yaml.YAMLError as exc:
        problem = first_line(exc)
    raise QuotaFileRefused(name, [Mistake(f"the file is neither JSON nor YAML: {problem}")])


def _json(text: str, mistakes: Mistakes) -> Any:
    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):  # json tells no line
            shown = ", ".join(f"{_json_text(key)}: {_json_text(value)}" for key, value in pairs)
            _refuse_repeated([key for key, _ in pairs], mistakes, f", in {_cut(f'{{{shown}}}')}")
        return found

    return json.loads(text, object_pairs_hook=mapping)


def _yaml(text: str, mistakes: Mistakes) -> list[Any]:
    loader = _StrictLoader(text)
    loader.mistakes = mistakes
    documents = []
    try:
        while loader.check_data():
            documents.append(loader.get_data())
    finally:
        loader.dispose()
    return documents


def _refuse_repeated(keys: Sequence[str], mistakes: Mistakes, where: str) -> None:
    for key, count in Counter(keys).items():
        if count > 1:
            mistakes.add(f"'{key}' is given {count} times{where}")


# Reads a file: quotas in rpk's form or as plain rows with the columns of the table, and tenants.

TENANT: Final = "Tenant"
"""The `kind` of a document that is a tenant."""

_NOT_OURS: Final = ("ip", "client-id-prefix")
_NAMES: Final = QUOTA_ROWS.keys


@dataclass(frozen=True, slots=True)
class Declared:
    """What a file declares; None for a table of which it says nothing.

    Attributes:
        quotas: rows with user, client_id ("" and `<default>` as in the table) and a bound for every type, None where
            the file names none; and those of mode, owner and note that the file names.
        tenants: rows with all columns of a tenant, but for those of mode, owner and note that the file does not name.
    """

    quotas: Sequence[QuotaValues] | None
    tenants: Sequence[QuotaValues] | None

    def of(self, kind: RowKind) -> Sequence[QuotaValues] | None:
        """The rows for a table."""
        return self.quotas if kind is QUOTA_ROWS else self.tenants

    def snapshot(self, version: int, rest: QuotaSnapshot | None = None) -> QuotaSnapshot:
        """What is declared, as this version; a table of which it says nothing is as in `rest`, or without it empty."""
        quotas = QuotaSnapshot.from_rows(self.quotas or (), version)
        if self.quotas is None and rest is not None:
            quotas = replace(rest, version=version)
        if self.tenants is not None:
            return replace(quotas, tenants=read_tenants(self.tenants, version), tenants_version=version)
        if rest is not None:
            return replace(quotas, tenants=rest.tenants, tenants_version=rest.tenants_version)
        return quotas


def from_text(text: str, name: str = "the file") -> Declared:
    """Read a file: JSON, or YAML of one or several documents.

    A document is a list of quotas; a mapping with a list `quotas`, a list `tenants` or both; or one tenant, of `kind:
    Tenant`. A quota is in rpk's form (see the top of this module) or a row: user, client_id, bounds, mode, owner, note.
    Bounds are numbers or texts, in which units are allowed (`quota.units`).

    Raises:
        QuotaFileRefused: Names all mistakes at once, each with its place in the file.
    """
    mistakes = Mistakes()
    documents = load_documents(text, name, mistakes) or [None]
    quotas, tenants = parts = _Rows(QUOTA_ROWS, _declared), _Rows(TENANT_ROWS, _declared_tenant)
    for number, document in enumerate(documents, start=1):
        is_alone = len(documents) == 1
        where = mistakes if is_alone else mistakes.at(f"document {number}")
        if isinstance(document, dict) and "kind" in document:
            tenants.add(document, where, f"document {number}")
        elif isinstance(document, dict) and tenants.name in document:
            _add_parts(document, where, (quotas, tenants) if quotas.name in document else (tenants,))
        elif isinstance(document, dict):
            _add_parts(document, where, (quotas,))
        elif document is not None or is_alone:
            quotas.add_all(document, where)
    if mistakes.found:
        named = [part for part in parts if part.found is not None] or [quotas]
        fix = "; ".join(_WRITTEN[part.name] for part in named)
        raise QuotaFileRefused(name, mistakes.found, " and ".join(part.name for part in named), fix)
    return Declared(quotas.found, tenants.found)


_WRITTEN: Final = {
    QUOTA_ROWS.table: "a quota is written like {user: alice, client_id: etl, producer_byte_rate: 1MB/s}",
    TENANT_ROWS.table: "a tenant is written like {kind: Tenant, tenant: team-a, user_patterns: [team-a-*], "
    "producer_byte_rate: 10MB/s}",
}


def _add_parts(document: Mapping[str, Any], mistakes: Mistakes, parts: Sequence["_Rows"]) -> None:
    for key in document:
        if key not in {part.name for part in parts}:
            mistakes.at(str(key)).add(f"'{key}' is not part of a quota file")
    for part in parts:
        if isinstance(document.get(part.name), list):
            part.add_all(document[part.name], mistakes.at(part.name))
        else:
            part.add_all(document, mistakes)


class _Rows:
    """The rows of one kind that a file declares, each key once."""

    def __init__(self, kind: RowKind, read: Callable[[object, Mistakes], QuotaValues | None]) -> None:
        self.name = kind.table
        self.found: list[QuotaValues] | None = None
        self._kind, self._read = kind, read
        self._places: dict[tuple[str, ...], str] = {}

    def add_all(self, items: object, mistakes: Mistakes) -> None:
        """Add a list of rows."""
        if not isinstance(items, list):
            what = f"the file is not a list of {self.name}, nor a mapping with the list '{self.name}'"
            mistakes.add(f"{what}: {_shown(items)}")
            return
        self.found = self.found or []
        for number, item in enumerate(items):
            self.add(item, mistakes.at(number), f"[{number}]")

    def add(self, item: object, mistakes: Mistakes, place: str) -> None:
        """Add one row, of a place in the file."""
        self.found = self.found or []
        row = self._read(item, mistakes)
        if row is None:
            return
        key = self._kind.key(row)
        first = self._places.setdefault(key, place)
        if first != place:
            mistakes.add(f"{self._kind.label(*key)} is already given in {first}")
        self.found.append(row)


def _declared(item: object, mistakes: Mistakes) -> QuotaValues | None:
    """Read one quota; None if something is wrong with it, which is added to `mistakes` then."""
    before = len(mistakes.found)
    if not isinstance(item, dict):
        mistakes.add(f"{_shown(item)} is not a quota: a mapping of entity and values")
        return None
    is_row = "entity" not in item and any(name in item for name in _NAMES)
    parts = (*_NAMES, *QUOTA_TYPES) if is_row else ("entity", "values")
    unknown = [str(key) for key in item if key not in {*parts, *LABELS}]
    if unknown:
        mistakes.add(f"{', '.join(unknown)} is not part of a quota, which has {', '.join((*parts, *LABELS))}")
    names = _row_names(item, mistakes) if is_row else _entity(item.get("entity"), mistakes.at("entity"))
    bounds = _row_bounds(item, mistakes) if is_row else _bounds(item.get("values"), mistakes.at("values"))
    labels = _labels(item, mistakes)
    if len(mistakes.found) == before and not any(bounds.values()) and labels.get("mode") != "exempt":
        mistakes.add("a quota needs a value unless its mode is exempt; to remove a quota leave it out")
    if len(mistakes.found) != before:
        return None
    return {"user": names.get("user", ""), "client_id": names.get("client_id", ""), **bounds, **labels}


def _entity(parts: object, mistakes: Mistakes) -> dict[str, str]:
    names: dict[str, str] = {}
    if not isinstance(parts, list) or not parts:
        mistakes.add(f"'entity' is {_shown(parts)}, not a list of name and type")
        return names
    for number, part in enumerate(parts):
        at = mistakes.at(number)
        if not isinstance(part, dict) or part.keys() != {"name", "type"}:
            at.add(f"'entity' is {_shown(part)}, not a list of name and type")
            continue
        kind, name = part["type"], part["name"]
        if kind not in ENTITY_TYPES:
            hint = ": kquota has no such quotas" if kind in _NOT_OURS else ""
            at.at("type").add(f"'type' is {_shown(kind)}, not user or client-id{hint}")
        elif ENTITY_TYPES[kind] in names:
            at.at("type").add(f"'type' {kind} is given twice for one entity")
        elif not isinstance(name, str) or not name:
            at.at("name").add(f"'name' is {_shown(name)}, not text with at least one character (quote it)")
        else:
            names[ENTITY_TYPES[kind]] = name
    return names


def _row_names(row: Mapping[str, Any], mistakes: Mistakes) -> dict[str, str]:
    names = {}
    for column in _NAMES:
        name = row.get(column)
        if isinstance(name, str | None):
            names[column] = name or ""
        else:
            mistakes.at(column).add(f"'{column}' is {_shown(name)}, not text (quote it)")
    if len(names) == len(_NAMES) and not any(names.values()):
        mistakes.add("'user' and 'client_id' are both empty")
    return names


def _bounds(values: object, mistakes: Mistakes) -> dict[str, float | None]:
    bounds: dict[str, float | None] = dict.fromkeys(QUOTA_TYPES)
    if not isinstance(values, list | None):
        mistakes.add(f"'values' is {_shown(values)}, not a list of key and value")
        return bounds
    given: set[object] = set()
    for number, pair in enumerate(values or ()):
        at = mistakes.at(number)
        if not isinstance(pair, dict) or pair.keys() not in ({"key", "values"}, {"key", "value"}):
            at.add(f"'values' is {_shown(pair)}, not a list of key and value")
            continue
        key, value = pair["key"], pair.get("values", pair.get("value"))
        if not isinstance(key, str) or key not in bounds:
            at.at("key").add(f"'key' is {_shown(key)}, not one of {', '.join(QUOTA_TYPES)}")
        elif key in given:
            at.at("key").add(f"'key' {key} is given twice")
        else:
            given.add(key)
            with at.bound():
                bounds[key] = parse_bound(key, value)
    return bounds


def _row_bounds(row: Mapping[str, Any], mistakes: Mistakes) -> dict[str, float | None]:
    bounds: dict[str, float | None] = dict.fromkeys(QUOTA_TYPES)
    for name in QUOTA_TYPES:
        if row.get(name) is not None:
            with mistakes.at(name).bound():
                bounds[name] = parse_bound(name, row[name])
    return bounds


def _declared_tenant(item: object, mistakes: Mistakes) -> QuotaValues | None:
    """Read one tenant; None if something is wrong with it, which is added to `mistakes` then."""
    before = len(mistakes.found)
    if not isinstance(item, dict):
        mistakes.add(f"{_shown(item)} is not a tenant: a mapping of tenant, patterns and bounds")
        return None
    given = {tenant_column(str(key)): value for key, value in item.items()}
    for column, count in Counter(tenant_column(str(key)) for key in item).items():
        if count > 1:
            mistakes.add(f"'{column}' is given {count} times, under both of its names")
    if (kind := given.pop("kind", TENANT)) != TENANT:
        mistakes.at("kind").add(f"'kind' is {_shown(kind)}, not {TENANT}")
    if unknown := [key for key in given if key not in TENANT_ROWS.columns]:
        mistakes.add(f"{', '.join(unknown)} is not part of a tenant, which has {', '.join(TENANT_ROWS.columns)}")
    name = given.get("tenant")
    if not isinstance(name, str) or not name:
        mistakes.at("tenant").add(f"'tenant' is {_shown(name)}, not text with at least one character (quote it)")
    row = {column: value for column, value in new_tenant(str(name)).items() if column not in LABELS}
    for column in PATTERNS:
        patterns = given.get(column) or []
        if isinstance(patterns, list) and all(isinstance(one, str) for one in patterns):
            row[column] = tuple(dict.fromkeys(patterns))
        else:
            mistakes.at(column).add(f"'{column}' is {_shown(patterns)}, not a list of texts (quote them)")
    for column in TENANT_ROWS.settings:
        if column in row and column not in PATTERNS and given.get(column) is not None:
            row[column] = parse_setting(column, given[column], mistakes.at(column))
    labels = _labels(given, mistakes, TENANT_MODES)
    return None if len(mistakes.found) != before else {**row, **labels}


def _labels(item: Mapping[str, Any], mistakes: Mistakes, modes: Sequence[str] = MODES) -> dict[str, str | None]:
    labels = {name: item[name] for name in LABELS if name in item}
    if "mode" in labels and labels["mode"] not in modes:
        mistakes.at("mode").add(f"'mode' is {_shown(labels['mode'])}, not one of {', '.join(modes)}")
    for name in ("owner", "note"):
        if not isinstance(labels.get(name), str | None):
            mistakes.at(name).add(f"'{name}' is {_shown(labels[name])}, not text or null")
    return labels


def _shown(value: object) -> str:
    return _cut(_json_text(value))


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


def read_declared(path: Path) -> Declared:
    """What a file declares; raises `UnreadableFile`, too."""
    return from_text(read_text_file("--quotas", path), str(path))
