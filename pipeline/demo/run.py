"""The demo: real brokers with the reporter in them, real clients and the job, on one machine, under one folder.

The job is the one of production. The demo adds the brokers and the clients around it.
"""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from threading import Event, Thread
from typing import Final

from pipeline.brokers import metering
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import create_topics, wanted_topics
from pipeline.command_line import CONFIG, command_text
from pipeline.demo.broker import BrokerOptions, EmbeddedCluster
from pipeline.demo.clients import DemoPlan, create_demo_topics, start_demo_clients
from pipeline.demo.folder import (
    DEMO_CLIENTS,
    DEMO_QUOTAS,
    DEMO_TENANT,
    STOCK_CLIENTS,
    DemoFolder,
    split_shares,
    write_candidate,
    write_settings,
)
from pipeline.job.job import Job, step
from pipeline.job.metrics import Listeners
from pipeline.job.status import job_lock
from pipeline.meter.reporter import REPORTER_PREFIX
from pipeline.process import spawn, terminate
from pipeline.settings.model import Settings
from pipeline.stream.session import SparkStarter
from pipeline.tables.layout import create_tables
from pipeline.tables.port import TableOfAnotherBuild
from pipeline.tables.quotas.table import QuotaTable, TenantTable, local_audit
from pipeline.tables.quotas.tenants import new_tenant

# Before the job starts: the cluster, settings, topics, tables, quotas.


def new_cluster(folder: DemoFolder, brokers: int, usage_topic: str) -> EmbeddedCluster:
    """The cluster of a demo, which is not started yet. Its brokers report the usage of the clients that sign in."""
    leaves_out = {f"{REPORTER_PREFIX}exclude.users": "ANONYMOUS"}  # brokers, the job, and whatever looks on
    options = BrokerOptions(usage_topic=usage_topic, settings=leaves_out)
    return EmbeddedCluster(folder.brokers(brokers), folder.passwords(), options)


def demo_settings(settings: Settings, folder: DemoFolder, cluster: EmbeddedCluster) -> Settings:
    """The settings with the addresses and folders of a demo whose cluster runs."""
    given = settings.model_dump()
    given["kafka"] |= {"bootstrap_servers": cluster.bootstrap_servers}
    given["tables"] |= {"root": str(folder.tables)}
    given["stream"] |= {"checkpoint": str(folder.checkpoint)}
    given["sync"] |= {"users": sorted(client.user for client in STOCK_CLIENTS)}  # the other clients listen
    return Settings.model_validate({**given, "run_dir": folder.root})


def prepare(folder: DemoFolder, settings: Settings, brokers: int) -> None:
    """Write the files, create topics and tables that are missing, fill a new quota table, switch metering on."""
    write_settings(folder, settings)
    write_candidate(folder)
    with ClusterAccess.from_settings(settings.kafka).admin() as admin:
        create_topics(admin, wanted_topics(settings))
        create_demo_topics(admin, brokers)
    make_tables(settings)
    metering.write(settings, metering.planned(settings, by="pair"))


def make_tables(settings: Settings) -> None:
    """Create the tables that are missing, a new quota table with the demo's quotas and its tenant."""
    try:
        created = create_tables(settings.tables.root)
    except TableOfAnotherBuild as exc:
        fix = f"start over: {command_text('demo', '--fresh')}, or make run FRESH=1"
        raise TableOfAnotherBuild(exc.table, exc.lacking, fix) from exc
    if "quotas" in created:
        QuotaTable(settings.tables.root).commit(lambda _: list(DEMO_QUOTAS), local_audit("the demo's quotas"))
        tenant = {**new_tenant(DEMO_TENANT["tenant"]), **DEMO_TENANT}
        TenantTable(settings.tables.root).commit(lambda _: [tenant], local_audit("the demo's tenant"))


# Processes around the job: stock clients, quota sync, and the page.

Child = subprocess.Popen[bytes]

_KQUOTA: Final = (sys.executable, "-m", "pipeline.cli.main")

# Of those that look on, or have time: all start at once, and the job's first micro-batch comes before them.
_NICENESS: Final = 10


def start_command(folder: DemoFolder, log_file: Path, *command: object) -> Child:
    """Start a command of kquota with the settings file and the tables of the demo."""
    given = map(str, (*command, "--config", folder.settings_file, "--tables", folder.tables))
    with log_file.open("ab") as output:
        return spawn([*_KQUOTA, *given], cwd=folder.root, output=output, niceness=_NICENESS)


# The load and the processes: started together, watched, ended together.

log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 5.0


class Load:
    """All processes that use the cluster. `start` and `watch` run in one thread, which lives as long as they."""

    def __init__(self, cluster: EmbeddedCluster, folder: DemoFolder, stack: ExitStack) -> None:
        self._cluster = cluster
        self._folder = folder
        self._stack = stack
        self._over = Event()
        stack.callback(self._over.set)

    def start(self) -> None:
        """Start the sync and all clients."""
        servers = self._cluster.bootstrap_servers
        self._keep(start_command(self._folder, self._folder.sync_log, "quotas", "sync", "--bootstrap-server", servers))
        plan = DemoPlan(
            bootstrap_servers=self._cluster.sasl_bootstrap_servers,
            view_bootstrap_servers=servers,
            passwords=self._folder.passwords(),
            clients=(*DEMO_CLIENTS, *STOCK_CLIENTS),
            split_shares=split_shares(len(self._cluster.brokers)),
        )
        self._keep(start_demo_clients(plan, start_new_session=True))
        log.info("ten clients that listen to throttles are sending and reading, and two that do not")
        log.info("to look into it from any shell: export %s=%s", CONFIG, quote(str(self._folder.settings_file)))

    def watch(self, duration_seconds: float | None, stop: Callable[[], None]) -> None:
        """Return at the end of the load. `stop` is called after `duration_seconds`; None = never."""
        if not self._over.wait(duration_seconds):
            stop()
            self._over.wait()

    def _keep(self, child: Child) -> None:
        if child.stdin is not None:
            self._stack.callback(child.stdin.close)
        self._stack.callback(terminate, child, _STOP_SECONDS)


@dataclass
class Demo:
    """Runs the demo until it is stopped or its time is up.

    Attributes:
        folder: Where everything is kept; this process has claimed it.
        settings: Of the job; addresses and folders are replaced by the demo's.
        brokers: How many; as many as in the demo before in this folder.
        dashboard_port: Where the page listens, on this machine only.
        has_begun: Whether there are tables.
        is_stopping: Whether it was asked to end.
    """

    folder: DemoFolder
    settings: Settings
    listeners: Listeners
    brokers: int
    dashboard_port: int
    has_begun: bool = field(default=False, init=False)
    is_stopping: bool = field(default=False, init=False)
    _job: Job | None = field(default=None, init=False)

    def stop(self) -> None:
        """End the demo; from any thread."""
        self.is_stopping = True
        if self._job is not None:
            self._job.stop()

    def run(self, duration_seconds: float | None) -> None:
        """Start brokers, tables, job and clients; stop them in reverse, so long after the job is ready."""
        with ExitStack() as stack:
            starter = stack.enter_context(SparkStarter(self.settings))
            with step("broker" if self.brokers == 1 else f"{self.brokers} brokers"):
                cluster = stack.enter_context(new_cluster(self.folder, self.brokers, self.settings.kafka.usage_topic))
            log.info("dashboard: http://127.0.0.1:%d/ (in a few seconds)", self.dashboard_port)
            settings = demo_settings(self.settings, self.folder, cluster)
            with step("topics and tables"):
                prepare(self.folder, settings, self.brokers)
            page = start_command(self.folder, self.folder.dashboard_log, "dashboard", "--port", self.dashboard_port)
            stack.callback(terminate, page, _STOP_SECONDS)
            self.has_begun = True
            load = Load(cluster, self.folder, stack)
            self._job = job = Job(settings, self.listeners)
            if self.is_stopping:  # perhaps before there was a job to stop
                return

            def run_load() -> None:
                job.ready.wait()
                load.start()
                load.watch(duration_seconds, self.stop)

            Thread(target=run_load, name="demo-load", daemon=True).start()
            job.run(starter)


def start_over(folder: DemoFolder, job: str) -> None:
    """Delete what earlier demos have left. Other files stay.

    The lock of the demo's job is held meanwhile, and goes last, with the tables; if the job runs, that is a `Conflict`,
    and nothing is deleted. Brokers end with the demo that has started them, and this process holds the lock of the
    folder.
    """
    brokers = folder.brokers(max(folder.former_brokers(), 1))
    data = (
        *(folder.checkpoint, *brokers, folder.password_file),
        *(folder.sync_log, folder.demo_log, folder.settings_file, folder.candidate, folder.tables),
    )
    with job_lock(folder.root, job, str(folder.tables)):
        for path in data:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
