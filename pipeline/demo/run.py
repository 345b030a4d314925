"""The demo: a real broker, real clients, a real meter and the job, on one machine, under one folder.

The job is the one of production. The demo adds the broker, the clients and the meter around it.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from shlex import quote
from threading import Thread, Timer
from typing import Any, Final

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.command_line import CONFIG
from pipeline.demo.bounds import client_bounds
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.broker_config import BrokerOptions
from pipeline.demo.clients import create_demo_topics, start_demo_clients
from pipeline.demo.folder import DemoFolder
from pipeline.demo.plan import DEMO_INTERNAL_LISTENERS, DEMO_QUOTAS, DemoPlan
from pipeline.demo.process import spawn, terminate
from pipeline.demo.written_files import write_candidate, write_settings
from pipeline.job.job import Job, Listeners, step
from pipeline.settings.model import Settings
from pipeline.stream.reading_rules import ReadingRules
from pipeline.stream.spark_starter import SparkStarter
from pipeline.tables.audit import local_audit
from pipeline.tables.from_settings import create_tables, open_quota_table

log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 5.0
_BROKER_ID: Final = "1"

ClientReports = Callable[[dict[str, Any]], None]


@dataclass
class Demo:
    """Runs the demo until it is stopped or its time is up.

    Attributes:
        folder: Where everything is kept; this process has claimed it.
        settings: Of the job; addresses and folders are replaced by the demo's.
        listeners: Called with what the job does.
        client_report: Called with the counters of each client once per second.
        bounds: What each client may use now; None before there are tables. See `client_bounds`.
    """

    folder: DemoFolder
    settings: Settings
    listeners: Listeners
    client_report: ClientReports
    bounds: Callable[[], dict[tuple[str, str], float | None]] | None = field(default=None, init=False)
    _job: Job | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """End the demo; safe from a signal handler."""
        self._stopped = True
        if self._job is not None:
            self._job.stop()

    def run(self, duration_seconds: float | None) -> None:
        """Start broker, tables, job, meter and clients; stop them in reverse.

        Args:
            duration_seconds: Counted from the moment the clients start; None runs until `stop`.
        """
        with ExitStack() as stack:
            rules = ReadingRules.from_settings(self.settings)
            starter = stack.enter_context(SparkStarter(self.settings.spark, str(self.folder.checkpoint), rules))
            with step("broker"):
                broker = stack.enter_context(
                    EmbeddedBroker(self.folder.broker, self.folder.passwords(), options=BrokerOptions(request_log=True))
                )
            settings = self._settings_for(broker)
            with step("topics and tables"):
                self._prepare(settings)
            self.bounds = partial(client_bounds, settings.tables)
            if self._stopped:
                return
            self._job = Job(settings, self.listeners)
            Thread(
                target=self._start_load,
                args=(broker, self._job, stack, duration_seconds),
                name="demo-load",
                daemon=True,
            ).start()
            self._job.run(starter)

    def _settings_for(self, broker: EmbeddedBroker) -> Settings:
        given = self.settings.model_dump()
        given["kafka"] |= {"bootstrap_servers": broker.bootstrap_servers}
        given["tables"] |= {"root": str(self.folder.tables)}
        given["stream"] |= {"checkpoint": str(self.folder.checkpoint)}
        return Settings.model_validate({**given, "run_dir": self.folder.root})

    def _prepare(self, settings: Settings) -> None:
        write_settings(self.folder, settings)
        write_candidate(self.folder)
        with ClusterAccess.from_settings(settings.kafka).admin() as admin:
            create_topics(admin, wanted_topics(settings))
            create_demo_topics(admin)
        if "quotas" in create_tables(settings.tables):
            audit = local_audit("the demo's quotas")
            open_quota_table(settings.tables).edit(lambda _: list(DEMO_QUOTAS), audit)

    def _start_load(self, broker: EmbeddedBroker, job: Job, stack: ExitStack, duration_seconds: float | None) -> None:
        """Begin to meter and to send once the job is ready, so that its first batch is not a backlog."""
        job.ready.wait()
        meter = _start_meter(broker, self.folder)
        stack.callback(terminate, meter, _STOP_SECONDS)
        plan_path = self.folder.clients_plan
        DemoPlan(
            bootstrap_servers=broker.sasl_bootstrap_servers,
            view_bootstrap_servers=broker.bootstrap_servers,
            passwords=self.folder.passwords(),
        ).write(plan_path)
        clients = start_demo_clients(plan_path, stdout=subprocess.PIPE, start_new_session=True)
        stack.callback(terminate, clients, _STOP_SECONDS)
        log.info("eight clients are sending and reading")
        log.info("to look into it from any shell: export %s=%s", CONFIG, quote(str(self.folder.settings_file)))
        if duration_seconds is not None:
            timer = Timer(duration_seconds, self.stop)
            timer.daemon = True
            timer.start()
        if clients.stdout is not None:
            for line in clients.stdout:
                self.client_report(json.loads(line))


def _start_meter(broker: EmbeddedBroker, folder: DemoFolder) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pipeline.cli.main", "meter", "request-log", str(broker.request_log_path)]
    command += ["--broker-id", _BROKER_ID, "--config", str(folder.settings_file)]
    # A flag, because a variable that is set in this shell would win over the file.
    command += ["--bootstrap-server", broker.bootstrap_servers]
    command += ["--state-file", str(folder.meter_state)]
    for listener in DEMO_INTERNAL_LISTENERS:
        command += ["--internal-listener", listener]
    with (folder.broker / "logs" / "meter.log").open("ab") as output:
        return spawn(command, cwd=folder.root, output=output)
