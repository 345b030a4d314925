"""The commits of the quota table, and who made them and why."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from deltalake import CommitProperties


@dataclass(frozen=True, slots=True)
class EditAudit:
    """Who edits, on which host, with which version of the tool, and why. It is stored in the commit."""

    actor: str
    host: str
    tool_version: str
    reason: str


@dataclass(frozen=True, slots=True)
class QuotaCommit:
    """One commit in the history of the quota table. `audit` is None if another tool made it."""

    version: int
    committed_at: datetime
    operation: str
    audit: EditAudit | None


def audit_properties(audit: EditAudit) -> CommitProperties:
    """With which an edit is committed; delta-rs does not try again by itself."""
    note = json.dumps(asdict(audit), ensure_ascii=False)
    return CommitProperties(custom_metadata={"userMetadata": note}, max_commit_retries=0)


def commit_of(entry: Mapping[str, Any]) -> QuotaCommit:
    """An entry of the table's history."""
    try:
        audit = EditAudit(**json.loads(entry["userMetadata"]))
    except (KeyError, TypeError, ValueError):
        audit = None
    committed_at = datetime.fromtimestamp(entry["timestamp"] / 1000, UTC)
    return QuotaCommit(entry["version"], committed_at, entry["operation"], audit)
