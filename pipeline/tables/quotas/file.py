"""Quotas as a file: the JSON and YAML of `rpk cluster quotas`, with mode, owner and note beside each quota's values.

    quotas:
      - entity:
          - {name: etl, type: client-id}
          - {name: alice, type: user}
        values:
          - {key: producer_byte_rate, values: "1048576"}
        mode: shadow

rpk calls the value `values` and writes it as text. `value` and numbers are accepted as well. The default entity is
named `<default>`, as in the table and in rpk.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from pipeline.tables.errors import QuotaEditRefused
from pipeline.tables.quotas.edit import LABELS
from pipeline.tables.quotas.file_text import load_text
from quota.bound_rules import bound_mistake
from quota.entity import QUOTA_TYPES, label
from quota.snapshot import MODES

_TYPES: Final = {"user": "user", "client-id": "client_id"}
_NOT_OURS: Final = ("ip", "client-id-prefix")


@dataclass(frozen=True, slots=True)
class DeclaredQuota:
    """The quota a file declares for one entity.

    Attributes:
        user: "" = not part of the entity, `<default>` = the default user.
        client_id: likewise, for the client-id.
        bounds: a bound for every quota type; None = no bound, because the file does not name it.
        labels: those of mode, owner and note that the file names. An edit leaves the others as they are.
    """

    user: str
    client_id: str
    bounds: Mapping[str, float | None]
    labels: Mapping[str, str | None]


def to_document(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of the table as one document. `mode` is left out if it is enforce, owner and note if they are null."""
    return {"quotas": [_exported(row) for row in rows]}


def from_text(text: str) -> list[DeclaredQuota]:
    """Read a file.

    Raises:
        QuotaEditRefused: The text is neither JSON nor YAML, or a part of it is not a quota. Names all mistakes at
            once, each with its place in the file.
    """
    document = load_text(text)
    if not isinstance(document, dict) or not isinstance(document.get("quotas"), list):
        raise QuotaEditRefused([f"the file must be a mapping with the list 'quotas'; got {_shown(document)}"])
    mistakes = [f"'{key}' is no part of a quota file" for key in document if key != "quotas"]
    declared: list[DeclaredQuota] = []
    places: dict[tuple[str, str], int] = {}
    for number, item in enumerate(document["quotas"]):
        quota = _declared(item, f"quotas[{number}]", mistakes)
        if quota is None:
            continue
        entity = (quota.user, quota.client_id)
        first = places.setdefault(entity, number)
        if first != number:
            mistakes.append(f"quotas[{number}]: {label(*entity)} must be given once; got it in quotas[{first}] too")
        declared.append(quota)
    if mistakes:
        raise QuotaEditRefused(mistakes)
    return declared


def _exported(row: Mapping[str, Any]) -> dict[str, Any]:
    # Types and keys in alphabetical order, as rpk writes them.
    quota: dict[str, Any] = {
        "entity": [{"name": row[column], "type": kind} for kind, column in sorted(_TYPES.items()) if row[column]],
        "values": [{"key": name, "values": _plain(row[name])} for name in sorted(QUOTA_TYPES) if row[name] is not None],
    }
    if row["mode"] != "enforce":
        quota["mode"] = row["mode"]
    return quota | {name: row[name] for name in ("owner", "note") if row[name] is not None}


def _plain(value: float) -> str:
    """A number without an exponent and without a trailing `.0`, as rpk writes it."""
    text = format(Decimal(repr(value)), "f")
    return text.removesuffix(".0")


def _declared(item: object, place: str, mistakes: list[str]) -> DeclaredQuota | None:
    """Read one element of `quotas`. Adds what is wrong with it to `mistakes`, and returns None then."""
    before = len(mistakes)
    if not isinstance(item, dict):
        mistakes.append(f"{place} must be a mapping of entity and values; got {_shown(item)}")
        return None
    unknown = [str(key) for key in item if key not in {"entity", "values", *LABELS}]
    if unknown:
        mistakes.append(f"{place} must hold entity, values, {', '.join(LABELS)}; got {', '.join(unknown)}")
    names = _entity(item.get("entity"), place, mistakes)
    bounds = _bounds(item.get("values"), place, mistakes)
    labels = _labels(item, place, mistakes)
    if len(mistakes) == before and not any(bounds.values()) and labels.get("mode") != "exempt":
        mistakes.append(f"{place}.values must not be empty unless the mode is exempt; to remove a quota leave it out")
    if len(mistakes) != before:
        return None
    return DeclaredQuota(names.get("user", ""), names.get("client_id", ""), bounds, labels)


def _entity(parts: object, place: str, mistakes: list[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    if not isinstance(parts, list) or not parts:
        mistakes.append(f"{place}.entity must be a list of name and type; got {_shown(parts)}")
        return names
    for number, part in enumerate(parts):
        where = f"{place}.entity[{number}]"
        if not isinstance(part, dict) or part.keys() != {"name", "type"}:
            mistakes.append(f"{where} must be a mapping of name and type; got {_shown(part)}")
            continue
        kind, name = part["type"], part["name"]
        if kind not in _TYPES:
            hint = ": kquota has no such quotas" if kind in _NOT_OURS else ""
            mistakes.append(f"{where}.type must be user or client-id; got {_shown(kind)}{hint}")
        elif _TYPES[kind] in names:
            mistakes.append(f"{where}.type must be given once per entity; got {kind} again")
        elif not isinstance(name, str) or not name:
            mistakes.append(f"{where}.name must be text that is not empty (quote it); got {_shown(name)}")
        else:
            names[_TYPES[kind]] = name
    return names


def _bounds(values: object, place: str, mistakes: list[str]) -> dict[str, float | None]:
    bounds: dict[str, float | None] = dict.fromkeys(QUOTA_TYPES)
    if not isinstance(values, list | None):
        mistakes.append(f"{place}.values must be a list of key and value; got {_shown(values)}")
        return bounds
    for number, pair in enumerate(values or ()):
        where = f"{place}.values[{number}]"
        if not isinstance(pair, dict) or pair.keys() not in ({"key", "values"}, {"key", "value"}):
            mistakes.append(f"{where} must be a mapping of key and values; got {_shown(pair)}")
            continue
        key, value = pair["key"], pair.get("values", pair.get("value"))
        if key not in bounds:
            mistakes.append(f"{where}.key must be one of {', '.join(QUOTA_TYPES)}; got {_shown(key)}")
        elif bounds[key] is not None:
            mistakes.append(f"{where}.key must be given once; got {key} again")
        else:
            bounds[key] = _bound(key, value, where, mistakes)
    return bounds


def _bound(key: str, value: object, where: str, mistakes: list[str]) -> float | None:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or (isinstance(value, str) and "_" in value):
        mistakes.append(f"{where}: Cannot parse quota configuration value for {key}: {_shown(value)}")
        return None
    refusal = bound_mistake(key, number)
    if refusal is not None:
        mistakes.append(f"{where}: {refusal}; got {value}")
        return None
    return number


def _labels(item: Mapping[str, Any], place: str, mistakes: list[str]) -> dict[str, str | None]:
    labels = {name: item[name] for name in LABELS if name in item}
    if "mode" in labels and labels["mode"] not in MODES:
        mistakes.append(f"{place}.mode must be one of {', '.join(MODES)}; got {_shown(labels['mode'])}")
    mistakes += [
        f"{place}.{name} must be text or null; got {_shown(labels[name])}"
        for name in ("owner", "note")
        if not isinstance(labels.get(name), str | None)
    ]
    return labels


def _shown(value: object) -> str:
    """A value for a message: as JSON, shortened to 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"


def applied(
    rows: Sequence[Mapping[str, Any]], declared: Iterable[DeclaredQuota], *, prune: bool
) -> list[dict[str, Any]]:
    """The rows after the file is applied, sorted by entity.

    A declared entity gets the bounds that the file names and no others. Mode, owner and note that the file does not
    name stay as they are; in a new row they are enforce, null and null.

    Args:
        rows: the rows of the table.
        declared: the quotas of the file.
        prune: remove the entities that the file does not name.
    """
    by_entity = {(row["user"], row["client_id"]): dict(row) for row in rows}
    wanted = {(quota.user, quota.client_id): quota for quota in declared}
    kept = {entity: row for entity, row in by_entity.items() if not prune or entity in wanted}
    for entity, quota in wanted.items():
        row = kept.get(entity) or {"user": quota.user, "client_id": quota.client_id, "mode": "enforce"}
        kept[entity] = {**row, **quota.bounds, **quota.labels}
    return [kept[entity] for entity in sorted(kept)]
