"""The jars of brokers of other Kafka releases, `kafka_jars("3.9")`, and of the newest release's tools."""

from pathlib import Path
from typing import Final

from bench.machine import KAFKA_VERSION
from pipeline.jvm.jars import JarStore, read_lock

RELEASES: Final = {"3.7": "3.7.2", "3.9": "3.9.2", "4.0": "4.0.1", "4.3": "4.3.1"}
"""Older than the locked broker of the project, by major and minor."""
NEWEST_JAVA: Final = {"3.7": 21, "3.9": 21}
"""On which a release runs; later ones run on all Javas that kquota runs on."""

LOCKED: Final = KAFKA_VERSION.rpartition(".")[0]
"""The release of the locked broker, by major and minor."""

_LOCK: Final = Path(__file__).with_name("jars.lock")


def kafka_jars(release: str) -> tuple[Path, ...]:
    """The class path of a broker of one of `RELEASES`, fetched and checked."""
    return _fetched(f"kafka-{release}")


def tools_jars() -> tuple[Path, ...]:
    """What Kafka's own commands need beside the locked broker's jars."""
    return _fetched("tools")


def _fetched(jar_set: str) -> tuple[Path, ...]:
    store = JarStore([jar for jar in read_lock(_LOCK) if jar.jar_set == jar_set])
    store.fetch()
    return tuple(store.path_of(jar) for jar in store.locked)
