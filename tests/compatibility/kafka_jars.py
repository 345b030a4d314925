"""The jars of brokers of other Kafka releases: `kafka_jars("3.9")`; logging is that of pyspark."""

from pathlib import Path
from typing import Final

from pipeline.jvm.jars import JarStore, read_lock

RELEASES: Final = {"3.7": "3.7.2", "3.9": "3.9.2", "4.0": "4.0.1"}
"""Older than the locked broker of the project, by major and minor."""
NEWEST_JAVA: Final = {"3.7": 21, "3.9": 21}
"""On which a release runs; later ones run on all Javas that kquota runs on."""

_LOCK: Final = Path(__file__).with_name("jars.lock")


def kafka_jars(release: str) -> tuple[Path, ...]:
    """The class path of a broker of one of `RELEASES`, fetched and checked."""
    store = JarStore([jar for jar in read_lock(_LOCK) if jar.jar_set == f"kafka-{release}"])
    store.fetch()
    return tuple(store.path_of(jar) for jar in store.locked)
