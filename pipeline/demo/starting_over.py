"""Starting over: what earlier demos have left in the demo's folder is deleted, and nothing else."""

import shutil

from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.folder import DemoFolder
from pipeline.job.lock import JobLock


def start_over(folder: DemoFolder, job: str) -> None:
    """Delete what earlier demos have left, while no job and no broker runs there. Other files stay.

    Args:
        folder: A folder that this process has claimed.
        job: Name of the demo's job; its lock is held meanwhile, and so is the broker's.

    Raises:
        JobIsRunning, BrokerAlreadyRunning: A job or a broker runs there; nothing is deleted.
    """
    data = (folder.tables, folder.checkpoint, folder.broker, folder.password_file, folder.clients_plan)
    more = (folder.meter_state, folder.settings_file, folder.candidate)
    with JobLock(folder.root, job, str(folder.tables)), EmbeddedBroker(folder.broker).reserved():
        for path in (*data, *more):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
