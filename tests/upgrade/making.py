"""Makes the kept state of an earlier release: its own code runs on a real broker, and is killed.

    python -m tests.upgrade.making CHECKOUT TARBALL

CHECKOUT is the code of that release, as `git archive COMMIT | tar x -C CHECKOUT` writes it. It runs with this Python,
so its dependencies must be among those of today. README.md beside this file says with which commit this was done.
"""

import json
import sys
import tarfile
import tempfile
import time
from contextlib import chdir
from pathlib import Path
from typing import Any, Final

from pipeline.demo.broker import EmbeddedBroker
from tests.integration.running_job import RunningJob, usage

JOB: Final = "kept"
FACTS: Final = "facts.json"
_BOUND: Final = 100_000
_SECONDS: Final = 6
# The broker makes its indexes and its configuration anew.
_NOT_KEPT: Final = ("*.index", "*.timeindex", "*.lock", "*.pid", "logs", "broker.json", "*.properties")
_BUT: Final = "meta.properties"


def make(checkout: Path, folder: Path) -> None:
    """Fill a folder with a broker's data, the tables and the checkpoint that the code of a checkout wrote."""
    with EmbeddedBroker(folder / "broker") as broker:
        job = old_job(checkout, folder, broker.bootstrap_servers)
        with chdir(checkout):  # before anything else, Python looks for modules in the working folder
            names = [part for kind in ("usage", "throttle", "marker") for part in (f"--{kind}-topic", f"{JOB}.{kind}")]
            run(job, "topics", "create", "--bootstrap-server", broker.bootstrap_servers, *names)
            job.command("tables", "create")  # 0.1.0 has no such command: its first edit creates the table
            for entity in (["--user", "alice", "--client", "c"], ["--user-defaults"]):
                bound = f"producer_byte_rate={_BOUND}"
                run(job, "quotas", "alter", *entity, "--add-config", bound, "--reason", "kept")
            job.start()
        try:
            sent = _load(job)
            job.kill()
        finally:
            job.close()
        unread: list[Any] = [usage("alice", 1_000), usage("late", 7), [usage("bob", 1), usage("bob", 2)]]
        job.send(*unread)
        facts = {"sent": sent, "unread": unread, "records": job.records()}
    (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def old_job(checkout: Path, folder: Path, bootstrap_servers: str) -> RunningJob:
    """The job of a checkout; commands of it must be started in that working folder."""
    return RunningJob(JOB, folder, bootstrap_servers, {"PYTHONPATH": str(checkout), "KQUOTA_STREAM__TRIGGER_MS": "500"})


def run(job: RunningJob, *arguments: str) -> str:
    """Run a command of the code in the working folder; it must succeed."""
    done = job.command(*arguments)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def pack(folder: Path, tarball: Path) -> None:
    """Keep what a start needs, with neither owners nor times, so that the same files make the same tarball."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = Path(member.name)
        if path.name != _BUT and any(path.match(pattern) for pattern in _NOT_KEPT):
            return None
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(tarball, "w:xz", preset=9) as packed:
        for part in ("broker", "tables", "checkpoint", FACTS):
            packed.add(folder / part, part, filter=plain)


def _load(job: RunningJob) -> list[Any]:
    """Alice sends eight times her bound, bob a tenth of his, in arrays; and a message that is no JSON."""
    sent: list[Any] = [b"no JSON"]
    job.send(b"no JSON")
    for _ in range(_SECONDS):
        messages: list[Any] = [usage("alice", 8 * _BOUND), [usage("bob", _BOUND // 20) for _ in range(2)]]
        job.send(*messages)
        sent += messages
        time.sleep(1)
    job.wait_for_record(user="alice", action="throttle")
    job.wait_for_record(user="alice", cause="renewed")
    return [message for message in sent if not isinstance(message, bytes)]


def main(checkout: Path, tarball: Path) -> None:
    """Make the state and pack it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(checkout.absolute(), folder)
        pack(folder, tarball)
    sys.stdout.write(f"{tarball}: {tarball.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
