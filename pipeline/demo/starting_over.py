"""Starting over: what earlier demos have left in the demo's folder is deleted, and nothing else."""

import shutil
from contextlib import ExitStack

from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.folder import DemoFolder
from pipeline.demo.plan import STOCK_CLIENTS
from pipeline.job.lock import JobLock


def start_over(folder: DemoFolder, job: str) -> None:
    """Delete what earlier demos have left, while no job and no broker runs there. Other files stay.

    Args:
        folder: A folder that this process has claimed.
        job: Name of the demo's job; its lock is held meanwhile, and so are the brokers'.

    Raises:
        JobIsRunning, BrokerAlreadyRunning: A job or a broker runs there; nothing is deleted.
    """
    brokers = folder.brokers(max(folder.former_brokers(), 1))
    data = (folder.tables, folder.checkpoint, *brokers, folder.password_file, folder.clients_plan)
    more = (folder.meter_state, folder.sync_log, folder.settings_file, folder.candidate)
    alerts = (folder.alerts_log, folder.alerts_state(job))
    stock = (folder.stock_client(client.client_id) for client in STOCK_CLIENTS)
    with ExitStack() as held:
        held.enter_context(JobLock(folder.root, job, str(folder.tables)))
        for broker in brokers:
            held.enter_context(EmbeddedBroker(broker).reserved())
        for path in (*data, *more, *alerts, *stock):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
