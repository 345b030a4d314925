"""The jars of a broker of Kafka 3.9: the oldest release with which the reporter is tested."""

from pathlib import Path

from pipeline.jvm.jars import JarStore, read_lock


def kafka_3_9_jars() -> tuple[Path, ...]:
    """The class path, fetched and checked."""
    store = JarStore(read_lock(Path(__file__).with_name("jars.lock")))
    store.fetch()
    return tuple(store.path_of(jar) for jar in store.locked)
