"""Measurements on disk, one file for each stage, so that a run that was broken off goes on where it was."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any


class Store:
    """The measurements of one commit.

    Args:
        folder: made if missing.
        commit: what is measured. Stages of another commit are not known.
    """

    def __init__(self, folder: Path, commit: str) -> None:
        self._folder = folder
        self._commit = commit

    def known(self, stage: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """What was measured at a stage with these arguments; None if nothing was.

        Args:
            stage: its name.
            asked: what was asked for, such as the number of events.
        """
        try:
            told = json.loads(self._file(stage).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if told["commit"] != self._commit or told["asked"] != asked:
            return None
        measured: dict[str, Any] = told["measured"]
        return measured

    def keep(self, stage: str, asked: dict[str, Any], measured: Any) -> dict[str, Any]:
        """Keep what was measured.

        Args:
            stage: its name.
            asked: as for `known`.
            measured: a dataclass, or a dictionary.

        Returns:
            The same as `known` will.
        """
        told = measured if isinstance(measured, dict) else asdict(measured)
        self._folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"commit": self._commit, "asked": asked, "measured": told}, indent=1)
        self._file(stage).write_text(text, encoding="utf-8")
        kept: dict[str, Any] = json.loads(text)["measured"]
        return kept

    def _file(self, stage: str) -> Path:
        return self._folder / f"{stage.replace(' ', '-')}.json"
