"""The jars of the peers: locked in this folder, fetched into the project's cache, checked against the lock.

    python -m bench.peers.jars lock

writes jars.lock from the pom.xml beside it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pipeline.jvm.jar_lock import read_lock
from pipeline.jvm.jar_lock_making import write_lock
from pipeline.jvm.jar_sources import machine_sources
from pipeline.jvm.jars import JarStore, pyspark_jars_folder

SETS: Final = ("streams", "flink")
LOCK: Final = Path(__file__).with_name("jars.lock")
_HEADER: Final = "# Jars of the peers. Written by `python -m bench.peers.jars lock` from bench/peers/pom.xml.\n"


def peer_jars(jar_set: str) -> list[Path]:
    """The jars of a set, fetched if they are missing.

    Args:
        jar_set: one of `SETS`.

    Raises:
        JarLockInvalid, JarsUnavailable, JarMissing, JarAltered: see there.
    """
    store = JarStore([jar for jar in read_lock(LOCK, SETS) if jar.jar_set == jar_set])
    store.fetch()
    return [store.check(jar) for jar in store.locked]


def main(arguments: Sequence[str]) -> int:
    """Write the lock. Returns 2 if anything else is asked for."""
    if list(arguments) != ["lock"]:
        sys.stderr.write("usage: python -m bench.peers.jars lock\n")
        return 2
    folder = pyspark_jars_folder()
    downloads = [source for source in machine_sources(folder) if source.attempts > 1]
    pom = LOCK.with_name("pom.xml")
    locked = write_lock(pom, LOCK, downloads, folder or Path("pyspark", "jars"), sets=SETS, header=_HEADER)
    sys.stdout.write(f"{len(locked)} jars locked\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
