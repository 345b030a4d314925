"""Quotas from a file, not from the table: rpk's form, or plain rows with the columns of `quotas`; JSON or YAML."""

from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.tables.errors import QuotaEditRefused
from pipeline.tables.quota_file import from_text
from pipeline.tables.quota_file_text import load_text
from quota.errors import InvalidQuotas
from quota.snapshot import QuotaSnapshot


class QuotaFileRefused(PipelineError):
    """A file that holds no valid quotas.

    Attributes:
        path: The file.
        cause: What is wrong with it.
    """

    exit_code = 5

    def __init__(self, path: Path, cause: str) -> None:
        self.path = path
        self.cause = cause
        super().__init__(f"quotas of {path} are not valid: {cause}", "mend the file; `kquota quotas export` shows how")


def read_snapshot(path: Path, version: int) -> QuotaSnapshot:
    """The quotas of a file, checked.

    Raises:
        QuotaFileRefused: It can not be read, or holds no quotas.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise QuotaFileRefused(path, str(exc)) from exc
    return snapshot_of_text(path, text, version)


def snapshot_of_text(path: Path, text: str, version: int) -> QuotaSnapshot:
    """The quotas of a text.

    Args:
        path: Where it comes from, for the error.
        text: `quotas: [{entity: …, values: …}]`, or rows: a list of them, or one under `quotas`.
        version: Of the snapshot.

    Raises:
        QuotaFileRefused: It holds no quotas.
    """
    try:
        return QuotaSnapshot.from_rows(_rows(path, text), version)
    except QuotaEditRefused as exc:
        raise QuotaFileRefused(path, "; ".join(exc.mistakes)) from exc
    except InvalidQuotas as exc:
        raise QuotaFileRefused(path, "; ".join(exc.problems)) from exc


def _rows(path: Path, text: str) -> list[dict[str, Any]]:
    document = load_text(text)
    rows = document.get("quotas") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise QuotaFileRefused(path, "it must be a list of quotas, or a mapping with the list 'quotas'")
    if any("entity" in row for row in rows):
        declared = from_text(text)
        return [{"user": one.user, "client_id": one.client_id, **one.bounds, **one.labels} for one in declared]
    return rows
