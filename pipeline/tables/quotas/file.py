"""Quotas as a file: the JSON and YAML of `rpk cluster quotas`, with mode, owner and note beside each quota's values.

    quotas:
      - entity:
          - {name: etl, type: client-id}
          - {name: alice, type: user}
        values:
          - {key: producer_byte_rate, values: "1048576"}
        mode: shadow

rpk calls the value `values` and writes it as text. `value`, numbers and units (`1MB/s`) are accepted as well. The
default entity is named `<default>`, as in the table and in rpk. `file_reading` reads such files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from quota.entity import QUOTA_TYPES
from quota.units import exact_text

ENTITY_TYPES: Final = {"user": "user", "client-id": "client_id"}
"""How rpk calls the parts of an entity -> the column of the table."""


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


def _exported(row: Mapping[str, Any]) -> dict[str, Any]:
    # Types and keys in alphabetical order, as rpk writes them.
    quota: dict[str, Any] = {
        "entity": [{"name": row[column], "type": kind} for kind, column in sorted(ENTITY_TYPES.items()) if row[column]],
        "values": [
            {"key": name, "values": exact_text(row[name])} for name in sorted(QUOTA_TYPES) if row[name] is not None
        ],
    }
    if row["mode"] != "enforce":
        quota["mode"] = row["mode"]
    return quota | {name: row[name] for name in ("owner", "note") if row[name] is not None}


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
