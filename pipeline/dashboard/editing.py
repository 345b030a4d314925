"""Edits of a quota from the page: planned, tried on recorded usage, made by the code of `kquota quotas alter`."""

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from asyncio import StreamReader
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError

from pipeline.command_line import naming_tables
from pipeline.dashboard.api import Edit
from pipeline.errors import Conflict, Refused
from pipeline.replay.edit_impact import impact_of
from pipeline.settings.loading import store_variables
from pipeline.settings.model import Settings
from pipeline.settings.places import StoreAddress
from pipeline.tables.quotas.edit import QuotaChange, alter_command, altered
from pipeline.tables.quotas.files import to_document
from pipeline.tables.quotas.history import differences, entity_texts
from pipeline.tables.quotas.table import QuotaEdit, QuotaTable, local_audit
from quota.entity import QUOTA_TYPES
from quota.errors import InvalidBound
from quota.units import parse_bound

_TEXTS: Final = ("mode", "owner", "note")
_REPLAYED: Final = "15m"
_REPLAY_SECONDS: Final = 120
_MOST_CLIENTS: Final = 20
_PROGRESS: Final = re.compile(r"replaying usage: ([0-9]+) %\n")


class Editing:
    """The edits of one quota table; for several threads. Planning is possible also if it may not write."""

    def __init__(self, settings: Settings, may_write: bool) -> None:
        self.may_write = may_write
        self._settings = settings
        self._root = settings.tables.root
        self._is_replaying = False

    def plan(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What an edit would change, and for which clients. Raises `Refused` or `Conflict` if it cannot be made."""
        change, edit = _read(body)
        planned = self._planned(change, edit)
        moved, warnings = impact_of(planned, self._settings)
        found = differences(planned.before.rows, planned.rows)
        return {
            "version": planned.before.version,
            "changes": [one.as_row() for one in found],
            "texts": entity_texts(found),
            "clients": moved[:_MOST_CLIENTS],
            "clients_total": len(moved),
            "warnings": warnings,
            "command": self._command(change, edit),
        }

    async def what_if(
        self, body: Mapping[str, Any], on_progress: Callable[[int], None] = lambda percent: None
    ) -> dict[str, Any]:
        """Replay the newest recorded usage with the edit: `kquota what-if`, in a process of its own, one at a time.

        The process ends with this call, also when that is cancelled. Calls come from one event loop.
        `on_progress` gets the percentage that is done, now and then.

        Raises:
            Conflict: Another one has not ended.
            Refused: There is too little usage, or it takes too long.
        """
        if self._is_replaying:
            msg = "another what-if is running; only one can run at a time"
            raise Conflict(msg, "repeat this when it has ended")
        self._is_replaying = True
        try:
            change, edit = _read(body)
            planned = await asyncio.to_thread(self._planned, change, edit)
            with tempfile.TemporaryDirectory() as folder:
                candidate = Path(folder) / "candidate.json"
                candidate.write_text(json.dumps(to_document(planned.rows)), encoding="utf-8")
                (report,) = json.loads(await self._replayed(candidate, edit.baseline, on_progress))
        finally:
            self._is_replaying = False
        answer = {"clients": report["clients"][:_MOST_CLIENTS], "command": self._command(change, edit)}
        return {"about": report["about"], "totals": report["totals"], **answer}

    async def _replayed(self, candidate: Path, baseline: str, on_progress: Callable[[int], None]) -> bytes:
        command = [sys.executable, "-m", "pipeline.cli.main", "what-if", "--quotas", str(candidate), "-o", "json"]
        command += ["--progress", "--from", "usage", "--since", _REPLAYED]
        command += ["--baseline", baseline, "--tables", self._root]
        store = store_variables(self._root.store) if isinstance(self._root, StoreAddress) else {}
        pipe = asyncio.subprocess.PIPE
        replay = await asyncio.create_subprocess_exec(
            *command, stdout=pipe, stderr=pipe, env={**os.environ, **store}, start_new_session=True
        )
        try:
            async with asyncio.timeout(_REPLAY_SECONDS):
                out, err = cast(StreamReader, replay.stdout), cast(StreamReader, replay.stderr)
                printed, complaint = await asyncio.gather(out.read(), _complaint(err, on_progress))
                await replay.wait()
        except TimeoutError as exc:
            msg = f"it took more than {_REPLAY_SECONDS} s"
            raise _what_if_failed(msg) from exc
        finally:
            if replay.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(replay.pid, signal.SIGKILL)
                await replay.wait()
        if replay.returncode:
            reason = complaint.strip().removeprefix("kquota: ")
            raise _what_if_failed(reason or f"exit code {replay.returncode}")
        return printed

    def write(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make the edit in one commit, with the reason.

        Raises:
            Conflict: The dashboard runs without `--allow-edits`, or the table has another version by now.
            Refused: The edit is invalid, or has no reason or no version.
        """
        change, edit = _read(body)
        if not self.may_write:
            msg, command = "dashboard is read-only", self._command(change, edit)
            raise Conflict(msg, "start it with --allow-edits" + (f", or make the edit by {command}" if command else ""))
        reason = edit.reason.strip()
        if not reason:
            msg = "an edit needs a reason"
            raise edit_refused(msg)
        if edit.if_version is None:
            msg = "an edit needs 'if_version', the version of the table that it is based on"
            raise edit_refused(msg)
        made = QuotaTable(self._root).edit(lambda rows: altered(rows, [change]), local_audit(reason), edit.if_version)
        return {"version": made.version, "texts": entity_texts(differences(made.before.rows, made.rows))}

    def _command(self, change: QuotaChange, edit: Edit) -> str | None:
        """The command that makes the same edit; None if it sets nothing."""
        if not change.values:
            return None
        other = naming_tables(str(self._root))
        return alter_command(change.user, change.client_id, change.values, edit.reason.strip(), other)

    def _planned(self, change: QuotaChange, edit: Edit) -> QuotaEdit:
        return QuotaTable(self._root).plan(lambda rows: altered(rows, [change]), edit.if_version)


async def _complaint(lines: StreamReader, on_progress: Callable[[int], None]) -> str:
    """What a process complains about, without the lines of its progress."""
    complaint = ""
    async for line in lines:
        text = line.decode(errors="replace")
        share = _PROGRESS.fullmatch(text)
        if share is None:
            complaint += text
        else:
            on_progress(int(share[1]))
    return complaint


def _read(body: Mapping[str, Any]) -> tuple[QuotaChange, Edit]:
    try:
        edit = Edit.model_validate(body)
    except ValidationError as exc:
        raise edit_refused("; ".join(_mistake(str(one["loc"][0])[:40], one["msg"]) for one in exc.errors())) from exc
    values = {name: _value(name, value) for name, value in edit.values.items()}
    return QuotaChange(edit.user, edit.client_id, values), edit


def _mistake(name: str, why: str) -> str:
    if name not in Edit.model_fields:
        return f"unknown field '{name}'; fields are {', '.join(Edit.model_fields)}"
    return f"'{name}' is not valid: {why}"


def _value(name: str, value: object) -> float | str | None:
    if name in QUOTA_TYPES:
        try:
            return None if value is None or value == "" else parse_bound(name, value)
        except InvalidBound as exc:
            raise edit_refused(str(exc)) from exc
    if name not in _TEXTS:
        msg = f"unknown value '{name[:40]}'; values are {', '.join((*QUOTA_TYPES, *_TEXTS))}"
        raise edit_refused(msg)
    if value is not None and not isinstance(value, str):
        msg = f"'{name}' is not a text: {value!r}"
        raise edit_refused(msg)
    return value or ("enforce" if name == "mode" else None)


def edit_refused(message: str) -> Refused:
    """The error of an edit that cannot be read, or is incomplete."""
    return Refused(message, "set values like producer_byte_rate=1MB/s, request_percentage=50% or mode=shadow")


def _what_if_failed(reason: str) -> Refused:
    return Refused(f"what-if failed: {reason}", "repeat it when more usage is recorded")
