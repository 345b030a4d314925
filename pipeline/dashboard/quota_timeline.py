"""The bounds of one client over time, and the edits that changed them: from the versions of the quota table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from arro3.core import Array, DataType

from pipeline.dashboard.reader import TablesReader
from pipeline.errors import PipelineError
from pipeline.tables.quotas.commits import QuotaCommit
from pipeline.tables.quotas.table import QuotaTable
from quota.engine import QuotaEngine
from quota.errors import QuotaError
from quota.snapshot import QuotaSnapshot

_MOST_VERSIONS: Final = 60


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bounds and edits in a span.

    Attributes:
        bounds: Oldest first: since when, and the bound and mode of each quota type from then on.
        edits: The versions committed in the span that changed something for the client; who, when, why.
    """

    bounds: Sequence[Mapping[str, Any]]
    edits: Sequence[Mapping[str, Any]]


def bounds_over_time(reader: TablesReader, user: str, client_id: str, since_ms: int, until_ms: int) -> Timeline:
    """What a client might use in a span, by the versions that were the newest then.

    A version that is not valid, or no longer kept, changes nothing.
    """
    commits = _commits(reader.root, reader.tables["quotas"].version)
    before = [commit for commit in commits if _at_ms(commit) <= since_ms]
    shown = [*before[-1:], *(commit for commit in commits if since_ms < _at_ms(commit) < until_ms)]
    bounds: list[dict[str, Any]] = []
    edits: list[dict[str, Any]] = []
    for commit in shown:
        try:
            found = _resolved(reader.quotas_at(commit.version), user, client_id)
        except (PipelineError, QuotaError):
            continue
        if bounds and bounds[-1]["by_type"] == found:
            continue
        edit = _edit_row(commit, bounds[-1]["by_type"] if bounds else {}, found)
        # The commit that made the table is the first of all, and gave nobody a bound.
        if bounds or (edit["changed"] and _at_ms(commit) > since_ms):
            edits.append(edit)
        bounds.append({"since_ms": max(_at_ms(commit), since_ms), "version": commit.version, "by_type": found})
    return Timeline(bounds, edits)


def _edit_row(commit: QuotaCommit, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    changed = {
        name: [before.get(name, {}).get("bound"), one["bound"]]
        for name, one in after.items()
        if before.get(name, {}).get("bound") != one["bound"]
    }
    return {
        "at_ms": _at_ms(commit),
        "version": commit.version,
        "actor": getattr(commit.audit, "actor", None),
        "reason": getattr(commit.audit, "reason", None),
        "changed": changed,
    }


@lru_cache(maxsize=8)
def _commits(root: str, _newest: int | None) -> tuple[QuotaCommit, ...]:
    """Oldest first; read again when there is a newer version, as a look at the log takes 10 ms."""
    return tuple(sorted(QuotaTable(root).history(_MOST_VERSIONS), key=lambda commit: commit.version))


@lru_cache(maxsize=512)
def _resolved(snapshot: QuotaSnapshot, user: str, client_id: str) -> dict[str, dict[str, Any]]:
    engine = QuotaEngine()
    engine.load_quotas(snapshot)
    names = {
        name: pa.array(Array([text], DataType.string())) for name, text in (("user", user), ("client_id", client_id))
    }
    return {
        row["quota_type"]: {"bound": row["bound"], "mode": row["mode"], "level": row["level"]}
        for row in engine.resolve(pa.table(names)).to_pylist()
    }


def _at_ms(commit: QuotaCommit) -> int:
    return int(commit.committed_at.timestamp() * 1_000)
