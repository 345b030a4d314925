"""The demo's folder: what is in it, the mark that says it is the demo's own, and starting over in it."""

import json
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.errors import NotADemoFolder
from pipeline.demo.plan import demo_users
from pipeline.job.lock import JobLock

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
        """Data and logs of the broker."""
        return self.root / "broker"

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

    def claim(self) -> None:
        """Create the folder if it is missing, and mark it as the demo's own.

        Raises:
            NotADemoFolder: It has content and no mark.
        """
        self._refuse_unmarked()
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / MARK).write_text(_MARK_TEXT, encoding="utf-8")

    def passwords(self) -> dict[str, str]:
        """The clients' passwords: random at the first start, the same at later starts."""
        file = self._password_file
        if not file.exists():
            file.touch(mode=0o600)
            file.write_text(json.dumps({user: secrets.token_hex(8) for user in demo_users()}))
        stored: dict[str, str] = json.loads(file.read_text())
        return stored

    def start_over(self, job: str) -> None:
        """Delete what earlier demos have left, while no demo and no job runs there. Other files stay.

        Args:
            job: Name of the demo's job; its lock is held meanwhile, and so is the broker's.

        Raises:
            NotADemoFolder: The folder has content and no mark; nothing is deleted.
            JobIsRunning, BrokerAlreadyRunning: A job or a broker runs there; nothing is deleted.
        """
        self._refuse_unmarked()
        if not self.root.exists():
            return
        data = (self.tables, self.checkpoint, self.broker, self._password_file, self.clients_plan, self.meter_state)
        with JobLock(self.root, job, str(self.tables)), EmbeddedBroker(self.broker).reserved():
            for path in data:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    @property
    def _password_file(self) -> Path:
        return self.root / "passwords.json"

    def _refuse_unmarked(self) -> None:
        if self.root.exists() and any(self.root.iterdir()) and not (self.root / MARK).exists():
            raise NotADemoFolder(self.root, MARK)
