"""The load of the demo and what is around it: started together, watched, ended together."""

import json
import logging
import math
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from shlex import quote
from threading import Event, Thread
from typing import IO, Any, Final

from pipeline.command_line import CONFIG
from pipeline.demo import class_archives
from pipeline.demo.children import Child, start_archive_making, start_meter, start_stock_client, start_sync
from pipeline.demo.clients import start_demo_clients
from pipeline.demo.cluster import EmbeddedCluster
from pipeline.demo.folder import DemoFolder
from pipeline.demo.plan import STOCK_CLIENTS, DemoPlan
from pipeline.demo.process import terminate

log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0
_ARCHIVES_AFTER_SECONDS: Final = 20.0

ClientReports = Callable[[dict[str, Any]], None]


class Load:
    """All processes that use the cluster. `start` and `watch` run in one thread, which lives as long as they.

    Args:
        cluster: It is running.
        folder: The demo's.
        report: Called with the counters of each client once per second, from several threads.
        stack: Its end ends the processes.
    """

    def __init__(self, cluster: EmbeddedCluster, folder: DemoFolder, report: ClientReports, stack: ExitStack) -> None:
        self._cluster = cluster
        self._folder = folder
        self._report = report
        self._stack = stack
        self._over = Event()
        self._clients: Child | None = None
        self._sends_in_full = False
        stack.callback(self._over.set)

    def start(self) -> None:
        """Start them all; the clients last."""
        self._keep(start_sync(self._cluster, self._folder))
        for broker in self._cluster.brokers:
            self._keep(start_meter(broker, self._folder))
        plan_path = self._folder.clients_plan
        DemoPlan(
            bootstrap_servers=self._cluster.sasl_bootstrap_servers,
            view_bootstrap_servers=self._cluster.bootstrap_servers,
            passwords=self._folder.passwords(),
            starts_calm=True,
        ).write(plan_path)
        self._clients = start_demo_clients(plan_path, stdout=subprocess.PIPE, start_new_session=True)
        self._follow(self._clients)
        for client in STOCK_CLIENTS:
            self._follow(start_stock_client(client, self._cluster, self._folder))
        log.info("eight clients that listen to throttles and two stock clients that do not are sending and reading")
        log.info("to look into it from any shell: export %s=%s", CONFIG, quote(str(self._folder.settings_file)))

    def send_in_full(self) -> None:
        """The job decides: the noisy clients may be noisy. What they used before is a debt. May be called again."""
        if not self._sends_in_full and self._clients is not None and self._clients.stdin is not None:
            self._sends_in_full = True
            with suppress(OSError):  # they have ended, or the demo has
                self._clients.stdin.write(b"\n")
                self._clients.stdin.flush()

    def watch(self, duration_seconds: float | None, stop: Callable[[], None]) -> None:
        """Tell of brokers that end, and make missing class archives beside the load; returns when it is over.

        Args:
            duration_seconds: When to call `stop`, from now; None = never.
            stop: Ends the demo.
        """
        ends = None if duration_seconds is None else time.monotonic() + duration_seconds
        archives_due = time.monotonic() + _ARCHIVES_AFTER_SECONDS
        told: set[int] = set()
        while not self._over.wait(_LOOK_SECONDS if ends is None else min(_LOOK_SECONDS, ends - time.monotonic())):
            for broker in self._cluster.ended():
                if broker.node_id not in told:
                    told.add(broker.node_id)
                    log.warning(
                        "broker %d has ended (%s); its partitions are away until the demo is started again",
                        broker.node_id,
                        broker.exit_code,
                    )
            if time.monotonic() >= archives_due:
                archives_due = math.inf
                self._make_archives()
            if ends is not None and time.monotonic() >= ends:
                ends = None
                stop()

    def _make_archives(self) -> None:
        """Once on a machine, and not at the start: it takes a core for a minute. If it is cut off, it begins anew."""
        if class_archives.are_missing():
            log.info("class archives are being made in the background, once: later starts take half the time")
            self._keep(start_archive_making(self._folder))

    def _keep(self, child: Child) -> None:
        if child.stdin is not None:
            self._stack.callback(child.stdin.close)
        self._stack.callback(terminate, child, _STOP_SECONDS)

    def _follow(self, child: Child) -> None:
        self._keep(child)
        if child.stdout is not None:
            Thread(target=self._read, args=(child.stdout,), name="demo-reports", daemon=True).start()

    def _read(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                try:
                    report = json.loads(line)
                except ValueError:
                    log.warning("a client says: %s", line.decode(errors="replace").rstrip())
                    continue
                self._report(report)
