"""Candidate quotas from a file: rows of `quotas`, in JSON or YAML."""

from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import PipelineError
from quota.errors import InvalidQuotas
from quota.snapshot import QuotaSnapshot

CANDIDATE_VERSION = 0


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
        super().__init__(
            f"quotas of {path} must be a list of rows with user, client_id and bounds; got {cause}", "mend the file"
        )


def read_quota_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file: a list of them, or one under the key `quotas`.

    Raises:
        QuotaFileRefused: It can not be read, or is neither.
    """
    try:
        # YAML reads JSON too.
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise QuotaFileRefused(path, " ".join(str(exc).split())) from exc
    rows = document.get("quotas") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise QuotaFileRefused(path, f"a {type(rows).__name__}")
    return rows


def read_snapshot(path: Path) -> QuotaSnapshot:
    """The quotas of a file, checked.

    Raises:
        QuotaFileRefused: As `read_quota_rows`, or its rows are no quotas.
    """
    try:
        return QuotaSnapshot.from_rows(read_quota_rows(path), CANDIDATE_VERSION)
    except InvalidQuotas as exc:
        raise QuotaFileRefused(path, "; ".join(exc.problems)) from exc
