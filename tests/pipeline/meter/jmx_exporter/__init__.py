"""The jmx_exporter, an agent in the JVM of a broker, or of Kafka's own JmxReporter alone."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import httpx

from deploy.reporter.__main__ import compile_java
from pipeline import process
from pipeline.jvm.jars import JarStore, broker_classpath, read_lock
from pipeline.jvm.java import find_java
from tests.waiting import PATIENCE_SECONDS, wait_until

_PROGRAM = Path(__file__).with_name("QuotaSensors.java")


def agent_option(port: int, rules: Path) -> str:
    """The option of a JVM that serves its beans on a port of this machine; the jar is fetched and checked."""
    store = JarStore(read_lock(Path(__file__).with_name("jars.lock")))
    store.fetch()
    (jar,) = map(store.path_of, store.locked)
    return f"-javaagent:{jar}=127.0.0.1:{port}:{rules}"


class QuotaSensor(NamedTuple):
    """A metric of Kafka with the tags of a quota; a name that is "" is no tag."""

    resource: str
    attribute: str
    rate: float
    user: str
    client_id: str


def exported_page(rules: str, sensors: Iterable[QuotaSensor], folder: Path) -> bytes:
    """What jmx_exporter with these rules shows of sensors; its JVM is ended."""
    file, (port,) = folder / "rules.yml", process.free_ports(1)
    file.write_text(rules, "utf-8")
    jars = broker_classpath()
    compile_java([_PROGRAM], jars, folder)
    class_path = os.pathsep.join(map(str, [folder, *jars]))
    arguments = ["&".join(quote(str(part), safe="") for part in sensor) for sensor in sensors]
    java = [str(find_java().executable), "-XX:TieredStopAtLevel=1", agent_option(port, file), "-cp", class_path]
    with (folder / "output").open("w+b") as output:
        jvm = process.spawn([*java, _PROGRAM.stem, *arguments], cwd=folder, output=output)
        try:
            wait_until(lambda: jvm.poll() is not None or b"shown\n" in (folder / "output").read_bytes(), "the sensors")
            return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_SECONDS).content
        finally:
            process.kill(jvm)
