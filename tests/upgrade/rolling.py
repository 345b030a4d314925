"""An upgrade one part after the other: the job of one release with the other parts of another, on a real broker.

    python -m tests.upgrade.rolling CHECKOUT

CHECKOUT is the code of the earlier release, as in README.md. Both ways are tried, then the way back, and the table
between the marks in docs/upgrade.md is written anew.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.process import free_ports, spawn, terminate
from tests.integration.running_job import RunningJob, usage
from tests.waiting import PATIENCE_SECONDS, wait_until

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "upgrade.md"
MARKS: Final = re.compile(r"(<!-- rolling -->\n).*?(<!-- end of rolling -->)", re.DOTALL)
BOUND: Final = 100_000


@dataclass(frozen=True)
class Release:
    """The code of a release, and where it is."""

    version: str
    checkout: Path

    @classmethod
    def of(cls, checkout: Path) -> "Release":
        found = re.search(r'^version = "(.+)"', (checkout / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
        assert found is not None, checkout
        return cls(found[1], checkout)

    def command(self, *arguments: str) -> list[str]:
        """A command of its code, to be started in its folder: there Python looks for modules first."""
        return [sys.executable, "-m", "pipeline.cli.main", *arguments]

    def run(self, job: RunningJob, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*arguments),
            cwd=self.checkout,
            env={**os.environ, **job.environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    @contextmanager
    def started(self, job: RunningJob, *arguments: str) -> Iterator[None]:
        log = job.folder / f"{arguments[0]}.log"
        environ = {**os.environ, **job.environment}
        with log.open("wb") as output:
            process = spawn(self.command(*arguments), cwd=self.checkout, output=output, env=environ)
        try:
            yield
        finally:
            terminate(process, 20)


def start_job(release: Release, job: RunningJob) -> None:
    before = Path.cwd()
    os.chdir(release.checkout)
    try:
        job.start()
    finally:
        os.chdir(before)


def answer(url: str) -> tuple[int, str]:
    """Status and body; 0 while nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:  # noqa: S310 - our own
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def mixed(of_job: Release, of_parts: Release, folder: Path, servers: str) -> Iterator[tuple[str, str, str]]:
    """Each part of a release with the job of another: part, what was done, what came of it."""
    name = f"rolling-{of_job.version.replace('.', '-')}"
    job = RunningJob(name, folder, servers)
    job.create_topics()
    for arguments in (
        ["tables", "create"],
        ["quotas", "alter", "--user", "alice", "--add-config", f"producer_byte_rate={BOUND}"],
    ):
        done = of_job.run(job, *arguments)
        assert done.returncode == 0, done.stderr
    try:
        start_job(of_job, job)
        yield from _with_parts(job, of_parts)
    finally:
        job.kill()


def _with_parts(job: RunningJob, parts: Release) -> Iterator[tuple[str, str, str]]:
    gate, page = free_ports(2)
    topic = job.environment["KQUOTA_KAFKA__THROTTLE_TOPIC"]
    servers = ["--bootstrap-server", job.bootstrap_servers]
    with (
        parts.started(job, "gate", "--listen", f"127.0.0.1:{gate}", "--topic", topic, *servers),
        parts.started(job, "dashboard", "--port", str(page)),
    ):
        own = {"client_id": "c", "broker_id": "1", "schema_version": 1}
        messages: list[Any] = [usage("alice", 60 * BOUND, **own), [usage("bob", 1, **own, broker_throttle_ms=3)]]
        job.send(*messages)  # as a meter of either release writes them
        job.wait_for_record(user="alice", action="throttle")
        yield "usage messages", "an event, and an array with a new field", _counted(job)
        throttle = f"http://127.0.0.1:{gate}/v1/throttle?user=alice&client_id=c"
        wait_until(lambda: answer(throttle)[0] == 429, "the gate to hold alice")
        yield "gate", "asked for a throttled client", "429, Retry-After"
        summary = f"http://127.0.0.1:{page}/api/v1/summary"
        wait_until(lambda: "alice" in answer(summary)[1], "the dashboard to name alice")
        yield "dashboard", "opened while a client is throttled", "names it"
        for arguments, word in (
            (["throttles", "list"], "alice"),
            (["throttles", "explain", "alice", "c"], "producer_byte_rate"),
            (["throttles", "verify"], "0 mismatches"),
            (["status"], "batch"),
            (["quotas", "describe"], "alice"),
        ):
            done = parts.run(job, *arguments)
            said = done.stdout + done.stderr
            outcome = "answers" if word in said else f"exit {done.returncode}: {' '.join(said.split())[:120]}"
            yield "command line", f"`kquota {' '.join(arguments)}`", outcome
        yield "sync", "`kquota quotas sync --once`", _exit(parts.run(job, "quotas", "sync", "--once", *servers))
        edited = parts.run(job, "quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1e9")
        assert edited.returncode == 0, edited.stderr
        release = job.wait_for_record(user="alice", action="release")
        yield "command line", "`kquota quotas alter`, a raise", f"the job releases: {release['cause']}"
        wait_until(lambda: answer(throttle)[0] == 200, "the gate to let alice go")
        yield "gate", "asked after the release", "200"


def _counted(job: RunningJob) -> str:
    stored = {row["user"]: row["produced_bytes"] for row in job.table("usage", ["user", "produced_bytes"]).to_pylist()}
    dead = job.table("dead_letters").num_rows
    return (
        "both counted" if stored == {"alice": 60 * BOUND, "bob": 1} and not dead else f"{stored}, {dead} dead letters"
    )


def _exit(done: "subprocess.CompletedProcess[str]") -> str:
    return "ends with 0" if done.returncode == 0 else f"exit {done.returncode}: {' '.join(done.stderr.split())[:160]}"


def back(new: Release, old: Release, folder: Path, servers: str) -> Iterator[tuple[str, str, str]]:
    """The way back: the job of the earlier release on what today's left behind, then on the copy from before."""
    job = RunningJob("way-back", folder, servers)
    job.create_topics()
    assert old.run(job, "tables", "create").returncode == 0
    alter = ("quotas", "alter", "--user", "alice", "--add-config", f"producer_byte_rate={BOUND}")
    assert old.run(job, *alter).returncode == 0
    copy = folder.with_name("copy")
    try:
        for release in (old, new):
            start_job(release, job)
            job.send(usage("alice", 60 * BOUND))
            wait_until(lambda: _sum(job) == 60 * BOUND * (1 + (release is new)), f"usage read by {release.version}")  # noqa: B023
            job.stop()
            if release is old:
                shutil.copytree(folder, copy)
        try:
            start_job(old, job)
            outcome = "starts"
        except AssertionError:
            said = next((line for line in job.log[::-1] if "kquota:" in line), job.log[-1])
            outcome = f"stops: {said.partition(', at attempt')[0]}"
        job.close()
        yield "job", f"started on the tables of {new.version}", outcome
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        before = len(job.records())
        start_job(old, job)
        job.send(usage("alice", 60 * BOUND))
        wait_until(lambda: _sum(job) == 3 * 60 * BOUND, "all usage")
        wait_until(lambda: len(job.records()) > before, "a record of the earlier release")
        numbers = [record["publish_seq"] for record in job.records()]
        assert numbers == list(range(len(numbers)))
        done = "started on the copy of tables and checkpoint from before"
        yield "job", done, "all usage counted once, records numbered on without a gap"
    finally:
        job.close()


def _sum(job: RunningJob) -> int:
    return sum(row["produced_bytes"] for row in job.table("usage", ["produced_bytes"]).to_pylist())


def table(rows: Sequence[tuple[str, str, str, str, str]]) -> str:
    head = "| job | other part | what was done | result |\n| --- | --- | --- | --- |\n"
    return head + "".join(
        f"| {job} | {part} {version} | {done} | {result} |\n" for job, part, version, done, result in rows
    )


def main(checkout: Path) -> None:
    old, new = Release.of(checkout.absolute()), Release.of(ROOT)
    rows: list[tuple[str, str, str, str, str]] = []
    with tempfile.TemporaryDirectory() as name, EmbeddedBroker(Path(name) / "broker") as broker:
        servers = broker.bootstrap_servers
        for of_job, of_parts in ((new, old), (old, new)):
            folder = Path(name) / f"job-{of_job.version}"
            for part, done, result in mixed(of_job, of_parts, folder, servers):
                rows.append((of_job.version, part, of_parts.version, done, result))
                sys.stdout.write(f"{rows[-1]}\n")
        for part, done, result in back(new, old, Path(name) / "back", servers):
            rows.append((old.version, part, old.version, done, result))
            sys.stdout.write(f"{rows[-1]}\n")
    text = f"\nTried on {datetime.now(UTC):%Y-%m-%d} by `python -m tests.upgrade.rolling`.\n\n{table(rows)}\n"
    PAGE.write_text(MARKS.sub(lambda found: found[1] + text + found[2], PAGE.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
