"""The demo's folder: what is in it, the mark that says it is the demo's own, and the lock of the one that runs there.

Nothing heavy is imported here: a second demo is refused at once.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.command_line import CONFIG, TABLES_ROOT, carry, path_text
from pipeline.demo.errors import DemoIsRunning, NotADemoFolder, OtherBrokerCount
from pipeline.demo.plan import demo_users
from pipeline.process_lock import LockHeld, ProcessLock

MARK: Final = ".kquota-demo"
_MARK_TEXT: Final = "Made by `kquota demo`. `kquota demo --fresh` deletes the demo's data in this folder.\n"


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """Where the demo keeps everything.

    The first demo in a new or empty folder leaves the mark `.kquota-demo` there. The demo uses no other folder that has
    content, so it can never work on, or delete, the tables of a real job.
    """

    root: Path

    @property
    def broker(self) -> Path:
        """Data and logs of the first broker."""
        return self.root / "broker"

    def brokers(self, count: int) -> list[Path]:
        """Data and logs of each of so many brokers, in the order of their ids."""
        return [self.broker, *(self.root / f"broker-{node_id}" for node_id in range(2, count + 1))]

    def former_brokers(self) -> int:
        """The number of brokers of the demo before; 0 if there was none."""
        count = 0
        while self.brokers(count + 1)[-1].exists():
            count += 1
        return count

    def choose_brokers(self, wanted: int | None) -> int:
        """The number of brokers of the next demo: as many as the one before, if there was one.

        Raises:
            OtherBrokerCount: Another number is wanted; topics would have partitions on brokers that are not there.
        """
        former = self.former_brokers()
        if former and wanted is not None and wanted != former:
            raise OtherBrokerCount(former, wanted)
        return former or wanted or 1

    def stock_client(self, client_id: str) -> Path:
        """What a stock client shall do, for its process."""
        return self.root / f"stock-{client_id}.json"

    @property
    def tables(self) -> Path:
        """Root of the Delta tables."""
        return self.root / "tables"

    @property
    def checkpoint(self) -> Path:
        """Checkpoint of the query."""
        return self.root / "checkpoint"

    @property
    def clients_plan(self) -> Path:
        """The plan of the clients, for their process."""
        return self.root / "clients.json"

    @property
    def meter_state(self) -> Path:
        """State file of the meter."""
        return self.root / "meter.json"

    @property
    def archives_log(self) -> Path:
        """What the making of class archives says."""
        return self.root / "class-archives.log"

    @property
    def sync_log(self) -> Path:
        """What the process says that puts quotas on the brokers."""
        return self.root / "sync.log"

    @property
    def dashboard_log(self) -> Path:
        """What the dashboard's process says."""
        return self.root / "dashboard.log"

    @property
    def alerts_log(self) -> Path:
        """What the process says that tells people."""
        return self.root / "alerts.log"

    def alerts_state(self, job: str) -> Path:
        """What was told of the alerts that go on: where `kquota alerts run` keeps it by default."""
        return self.root / f"{job}.alerts.json"

    @property
    def settings_file(self) -> Path:
        """The settings with which every command works on this demo's broker and tables."""
        return self.root / "kquota.toml"

    @property
    def candidate(self) -> Path:
        """Quotas to try with `what-if`."""
        return self.root / "candidate.yaml"

    @property
    def password_file(self) -> Path:
        """The clients' passwords."""
        return self.root / "passwords.json"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Mark the folder as the demo's own, made if it is missing, and keep other demos out until the end.

        Commands that are printed meanwhile find the demo's settings.

        Raises:
            NotADemoFolder: It has content and no mark; nothing in it is touched.
            DemoIsRunning: Another process runs a demo there.
        """
        if self.root.exists() and any(self.root.iterdir()) and not (self.root / MARK).exists():
            raise NotADemoFolder(self.root, MARK)
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / MARK).write_text(_MARK_TEXT, encoding="utf-8")
        carry(CONFIG, path_text(self.settings_file))
        if TABLES_ROOT in os.environ:
            carry(TABLES_ROOT, str(self.tables))  # else that variable would win over the file
        try:
            with ProcessLock(self.root / "demo.lock"):
                yield
        except LockHeld as exc:
            raise DemoIsRunning(self.root, exc.holder) from exc

    def passwords(self) -> dict[str, str]:
        """The clients' passwords: random at the first start, the same at later starts."""
        file = self.password_file
        file.touch(mode=0o600)
        stored: dict[str, str] = json.loads(file.read_text() or "{}")
        missing = {user: secrets.token_hex(8) for user in demo_users() if user not in stored}
        if missing:  # all of them, or those of users that later releases have brought
            file.write_text(json.dumps({**stored, **missing}))
        return {**stored, **missing}
