"""The processes around the job: a meter for each broker, stock clients, what writes quotas, the page, the alerts."""

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Final

from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.broker_config import FIRST_NODE_ID
from pipeline.demo.cluster import EmbeddedCluster
from pipeline.demo.folder import DemoFolder
from pipeline.demo.plan import DEMO_INTERNAL_LISTENERS, DemoClient, split_shares
from pipeline.demo.process import spawn
from pipeline.demo.sign_in import plain_sign_in
from pipeline.demo.stock_client import StockWork

Child = subprocess.Popen[bytes]

_KQUOTA: Final = (sys.executable, "-m", "pipeline.cli.main")

# Of those that look on, or have time: all start at once, and the job's first micro-batch comes before them.
_NICENESS: Final = 10


def start_meter(broker: EmbeddedBroker, folder: DemoFolder) -> Child:
    """Start the meter of a broker; it follows that broker's own request log."""
    command = [*_KQUOTA, "meter", "request-log", str(broker.request_log_path), "--broker-id", str(broker.node_id)]
    # A flag, because a variable that is set in this shell would win over the file.
    command += ["--config", str(folder.settings_file), "--bootstrap-server", broker.bootstrap_servers]
    if broker.node_id == FIRST_NODE_ID:
        command += ["--state-file", str(folder.meter_state)]
    for listener in DEMO_INTERNAL_LISTENERS:
        command += ["--internal-listener", listener]
    with (broker.directory / "logs" / "meter.log").open("ab") as output:
        return spawn(command, cwd=folder.root, output=output)


def start_sync(cluster: EmbeddedCluster, folder: DemoFolder) -> Child:
    """Start what puts quotas on the brokers: those of the users that the settings file names."""
    command = [*_KQUOTA, "quotas", "sync", "--config", str(folder.settings_file)]
    command += ["--bootstrap-server", cluster.bootstrap_servers, "--tables", str(folder.tables)]
    with folder.sync_log.open("ab") as output:
        return spawn(command, cwd=folder.root, output=output, niceness=_NICENESS)


def start_archive_making(folder: DemoFolder) -> Child:
    """Start what makes the class archives that are missing."""
    command = [sys.executable, "-m", "pipeline.demo.class_archives"]
    with folder.archives_log.open("ab") as output:
        return spawn(command, cwd=folder.root, output=output)


def start_dashboard(folder: DemoFolder, port: int) -> Child:
    """Start the page over the tables; it waits for them itself."""
    command = [*_KQUOTA, "dashboard", "--port", str(port), "--config", str(folder.settings_file)]
    with folder.dashboard_log.open("ab") as output:
        return spawn([*command, "--tables", str(folder.tables)], cwd=folder.root, output=output, niceness=_NICENESS)


def start_alerts(folder: DemoFolder) -> Child:
    """Start what tells people, with the receiver of the settings file."""
    command = [*_KQUOTA, "alerts", "run", "--config", str(folder.settings_file), "--tables", str(folder.tables)]
    with folder.alerts_log.open("ab") as output:
        return spawn(command, cwd=folder.root, output=output, niceness=_NICENESS)


def stock_work(client: DemoClient, cluster: EmbeddedCluster, password: str) -> StockWork:
    """What a stock client of the demo does, and all that it is told."""
    return StockWork(
        role=client.role,
        topic=client.topic,
        shares=split_shares(len(cluster.brokers)),
        bytes_per_second=client.bytes_per_second,
        requests_per_second=client.requests_per_second,
        options={
            **plain_sign_in(cluster.sasl_bootstrap_servers, client.user, password),
            "client_id": client.client_id,
        },
    )


def start_stock_client(client: DemoClient, cluster: EmbeddedCluster, folder: DemoFolder) -> Child:
    """Start a stock client; its counters come on its standard output, with what else it prints."""
    path = folder.stock_client(client.client_id)
    path.touch(mode=0o600)  # holds a password
    work = stock_work(client, cluster, folder.passwords()[client.user])
    path.write_text(json.dumps(asdict(work), indent=2), encoding="utf-8")
    command = [sys.executable, "-m", "pipeline.demo.stock_client", str(path)]
    return spawn(command, cwd=folder.root, output=subprocess.PIPE)
