"""The jmx_exporter, an agent in the JVM of a broker."""

from pathlib import Path

from pipeline.jvm.jars import JarStore, read_lock


def agent_option(port: int, rules: Path) -> str:
    """The option of a JVM that serves its beans on a port of this machine; the jar is fetched and checked."""
    store = JarStore(read_lock(Path(__file__).with_name("jars.lock")))
    store.fetch()
    (jar,) = map(store.path_of, store.locked)
    return f"-javaagent:{jar}=127.0.0.1:{port}:{rules}"
