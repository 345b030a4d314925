"""Reads a file of quotas: rpk's form, or plain rows with the columns of the table."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pipeline.tables.errors import QuotaFileRefused
from pipeline.tables.quotas.edit import LABELS
from pipeline.tables.quotas.file import ENTITY_TYPES, DeclaredQuota
from pipeline.tables.quotas.file_text import load_text, with_lines
from quota.entity import QUOTA_TYPES, label
from quota.mistakes import Mistakes
from quota.snapshot import MODES
from quota.units import parse_bound

_NOT_OURS: Final = ("ip", "client-id-prefix")
_NAMES: Final = ("user", "client_id")


def from_text(text: str, name: str = "the file") -> list[DeclaredQuota]:
    """Read a file.

    Args:
        text: JSON or YAML: a list of quotas, or a mapping with the list `quotas`. A quota is in rpk's form (see
            `pipeline.tables.quotas.file`) or a row: user, client_id, bounds, mode, owner, note. Bounds are numbers or
            texts, in which units are allowed (`quota.units`).
        name: How the file is called, for the error.

    Raises:
        QuotaFileRefused: The text is neither JSON nor YAML, or a part of it is not a quota. Names all mistakes at
            once, each with its place in the file.
    """
    mistakes = Mistakes()
    declared = _declared_quotas(load_text(text, name, mistakes), mistakes)
    if mistakes.found:
        raise QuotaFileRefused(name, with_lines(mistakes.found, text))
    return declared


def _declared_quotas(document: object, mistakes: Mistakes) -> list[DeclaredQuota]:
    items, where = document, mistakes
    if isinstance(document, dict):
        for key in document:
            if key != "quotas":
                mistakes.at(str(key)).add(f"'{key}' is no part of a quota file")
        items, where = document.get("quotas"), mistakes.at("quotas")
    if not isinstance(items, list):
        mistakes.add(f"the file must be a list of quotas, or a mapping with the list 'quotas'; got {_shown(document)}")
        return []
    declared: list[DeclaredQuota] = []
    places: dict[tuple[str, str], int] = {}
    for number, item in enumerate(items):
        quota = _declared(item, where.at(number))
        if quota is None:
            continue
        entity = (quota.user, quota.client_id)
        first = places.setdefault(entity, number)
        if first != number:
            where.at(number).add(f"{label(*entity)} must be given once; got it in [{first}] too")
        declared.append(quota)
    return declared


def _declared(item: object, mistakes: Mistakes) -> DeclaredQuota | None:
    """Read one quota; None if something is wrong with it, which is added to `mistakes` then."""
    before = len(mistakes.found)
    if not isinstance(item, dict):
        mistakes.add(f"a quota must be a mapping of entity and values; got {_shown(item)}")
        return None
    is_row = "entity" not in item and any(name in item for name in _NAMES)
    parts = (*_NAMES, *QUOTA_TYPES) if is_row else ("entity", "values")
    unknown = [str(key) for key in item if key not in {*parts, *LABELS}]
    if unknown:
        mistakes.add(f"a quota must hold {', '.join((*parts, *LABELS))}; got {', '.join(unknown)}")
    names = _row_names(item, mistakes) if is_row else _entity(item.get("entity"), mistakes.at("entity"))
    bounds = _row_bounds(item, mistakes) if is_row else _bounds(item.get("values"), mistakes.at("values"))
    labels = _labels(item, mistakes)
    if len(mistakes.found) == before and not any(bounds.values()) and labels.get("mode") != "exempt":
        mistakes.add("a quota must have a value unless its mode is exempt; to remove a quota leave it out")
    if len(mistakes.found) != before:
        return None
    return DeclaredQuota(names.get("user", ""), names.get("client_id", ""), bounds, labels)


def _entity(parts: object, mistakes: Mistakes) -> dict[str, str]:
    names: dict[str, str] = {}
    if not isinstance(parts, list) or not parts:
        mistakes.add(f"'entity' must be a list of name and type; got {_shown(parts)}")
        return names
    for number, part in enumerate(parts):
        at = mistakes.at(number)
        if not isinstance(part, dict) or part.keys() != {"name", "type"}:
            at.add(f"'entity' must be a list of name and type; got {_shown(part)}")
            continue
        kind, name = part["type"], part["name"]
        if kind not in ENTITY_TYPES:
            hint = ": kquota has no such quotas" if kind in _NOT_OURS else ""
            at.at("type").add(f"'type' must be user or client-id; got {_shown(kind)}{hint}")
        elif ENTITY_TYPES[kind] in names:
            at.at("type").add(f"'type' must be given once per entity; got {kind} again")
        elif not isinstance(name, str) or not name:
            at.at("name").add(f"'name' must be text that is not empty (quote it); got {_shown(name)}")
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
            mistakes.at(column).add(f"'{column}' must be text (quote it); got {_shown(name)}")
    if len(names) == len(_NAMES) and not any(names.values()):
        mistakes.add("'user' and 'client_id' must not both be empty; got \"\" and \"\"")
    return names


def _bounds(values: object, mistakes: Mistakes) -> dict[str, float | None]:
    bounds: dict[str, float | None] = dict.fromkeys(QUOTA_TYPES)
    if not isinstance(values, list | None):
        mistakes.add(f"'values' must be a list of key and value; got {_shown(values)}")
        return bounds
    given: set[object] = set()
    for number, pair in enumerate(values or ()):
        at = mistakes.at(number)
        if not isinstance(pair, dict) or pair.keys() not in ({"key", "values"}, {"key", "value"}):
            at.add(f"'values' must be a list of key and value; got {_shown(pair)}")
            continue
        key, value = pair["key"], pair.get("values", pair.get("value"))
        if not isinstance(key, str) or key not in bounds:
            at.at("key").add(f"'key' must be one of {', '.join(QUOTA_TYPES)}; got {_shown(key)}")
        elif key in given:
            at.at("key").add(f"'key' must be given once; got {key} again")
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


def _labels(item: Mapping[str, Any], mistakes: Mistakes) -> dict[str, str | None]:
    labels = {name: item[name] for name in LABELS if name in item}
    if "mode" in labels and labels["mode"] not in MODES:
        mistakes.at("mode").add(f"'mode' must be one of {', '.join(MODES)}; got {_shown(labels['mode'])}")
    for name in ("owner", "note"):
        if not isinstance(labels.get(name), str | None):
            mistakes.at(name).add(f"'{name}' must be text or null; got {_shown(labels[name])}")
    return labels


def _shown(value: object) -> str:
    """A value for a message: as JSON, shortened to 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"
