"""Fetches the locked jars for a command that needs them, on a machine that has none yet, and tells of it."""

import logging
import time

from pipeline.command_line import path_text
from pipeline.jvm.jar_lock import read_lock
from pipeline.jvm.jars import JarStore

log = logging.getLogger(__name__)


def fetch_missing(store: JarStore | None = None) -> None:
    """Fetch every jar that is not there, each checked against the lock's sha256; a line in the log for each download.

    Args:
        store: By default that of the locked jars of this machine.

    Raises:
        JarsUnavailable, JarMissing, JarAltered: As `JarStore.fetch`.
    """
    store = store or JarStore(read_lock())
    missing = store.missing()
    if not missing:
        return
    began = time.monotonic()
    megabytes = sum(jar.size_bytes for jar in missing) / 1e6
    log.info(
        "%d jars of Spark and the broker, %.0f MB, are not in %s yet: they are fetched once",
        len(missing),
        megabytes,
        path_text(store.folder),
    )
    store.fetch(lambda line: log.info("%s", line))
    log.info("jars %.1f s", time.monotonic() - began)
