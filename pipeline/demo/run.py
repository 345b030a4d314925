"""The demo: real brokers, real clients, real meters and the job, on one machine, under one folder.

The job is the one of production. The demo adds the brokers, the clients and the meters around it.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Final

from pydantic import SecretStr

from pipeline.demo.alert_receiver import AlertReceiver, Heard
from pipeline.demo.bounds import client_bounds
from pipeline.demo.children import start_alerts, start_dashboard
from pipeline.demo.folder import DemoFolder
from pipeline.demo.load import ClientReports, Load
from pipeline.demo.preparing import demo_settings, new_cluster, prepare
from pipeline.demo.process import terminate
from pipeline.job.job import Job, step
from pipeline.job.listeners import Listeners
from pipeline.settings.alerts import AlertsSettings
from pipeline.settings.model import Settings
from pipeline.stream.spark.spark_starter import SparkStarter
from pipeline.stream.usage_columns import ReadingRules

log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 5.0


@dataclass
class Demo:
    """Runs the demo until it is stopped or its time is up.

    Attributes:
        folder: Where everything is kept; this process has claimed it.
        settings: Of the job; addresses and folders are replaced by the demo's.
        listeners: Called with what the job does.
        client_report: Called with the counters of each client once per second.
        brokers: How many; as many as in the demo before in this folder.
        dashboard_port: Where the page listens, on this machine only; None = no page.
        alert_heard: Called with each alert that `kquota alerts run` sends; None = it does not run.
        bounds: What each client may use now; None before there are tables. See `client_bounds`.
    """

    folder: DemoFolder
    settings: Settings
    listeners: Listeners
    client_report: ClientReports
    brokers: int = 1
    dashboard_port: int | None = None
    alert_heard: Heard | None = None
    bounds: Callable[[], dict[tuple[str, str], float | None]] | None = field(default=None, init=False)
    _job: Job | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """End the demo; safe from a signal handler."""
        self._stopped = True
        if self._job is not None:
            self._job.stop()

    def run(self, duration_seconds: float | None) -> None:
        """Start brokers, tables, job, meters and clients; stop them in reverse.

        Args:
            duration_seconds: Counted from the moment the job is ready; None runs until `stop`.
        """
        with ExitStack() as stack:
            rules = ReadingRules.from_settings(self.settings)
            starter = stack.enter_context(SparkStarter(self.settings.spark, str(self.folder.checkpoint), rules))
            with step("broker" if self.brokers == 1 else f"{self.brokers} brokers"):
                cluster = stack.enter_context(new_cluster(self.folder, self.brokers))
            if self.dashboard_port is not None:
                log.info("dashboard: http://127.0.0.1:%d/ (in a few seconds)", self.dashboard_port)
            settings = demo_settings(self.settings, self.folder, cluster)
            if self.alert_heard is not None:
                receiver = stack.enter_context(AlertReceiver(self.alert_heard))
                settings = settings.model_copy(update={"alerts": self._alerts(receiver.url)})
            with step("topics and tables"):
                prepare(self.folder, settings, self.brokers)
            if self.dashboard_port is not None:
                stack.callback(terminate, start_dashboard(self.folder, self.dashboard_port), _STOP_SECONDS)
            if self.alert_heard is not None:
                stack.callback(terminate, start_alerts(self.folder), _STOP_SECONDS)
            self.bounds = partial(client_bounds, settings.tables)
            if self._stopped:
                return
            self._job = job = Job(settings, self.listeners)
            load = Load(cluster, self.folder, self.client_report, stack)

            def run_load() -> None:
                """Send while Spark warms up: the first batch finds clients above their quotas, and no long backlog."""
                starter.warms_up.wait()
                load.start()
                job.ready.wait()
                load.watch(duration_seconds, self.stop)

            Thread(target=run_load, name="demo-load", daemon=True).start()
            job.run(starter)

    def _alerts(self, url: str) -> AlertsSettings:
        page = None if self.dashboard_port is None else f"http://127.0.0.1:{self.dashboard_port}"
        return AlertsSettings(webhooks={"demo": SecretStr(url)}, external_url=page)
