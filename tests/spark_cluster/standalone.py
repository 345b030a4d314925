"""A standalone Spark cluster on this machine: a master and workers as processes, from the pip package of pyspark."""

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Final

from pipeline.jvm.java import find_java
from pipeline.process import free_ports, kill, spawn, terminate
from tests.waiting import wait_until

HOST: Final = "127.0.0.1"
_MAIN: Final = "org.apache.spark.deploy"
_GRACE_SECONDS: Final = 10.0


def spark_home() -> Path:
    """The folder of pyspark, which is a whole Spark."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@dataclass
class StandaloneCluster:
    """A master and its workers. Executors are children of their worker, in its process group.

    Attributes:
        folder: For the logs of master and workers, and for what executors write.
        workers: The workers that were started, in order; those that were killed too.
    """

    folder: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    workers: "list[Popen[bytes]]" = field(default_factory=list)
    _master: "Popen[bytes] | None" = None

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_HOME": str(spark_home()),
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_NO_DAEMONIZE": "1",
            # Executors find nothing of this checkout by themselves.
            "PYTHONPATH": "",
            "PYTHONSAFEPATH": "1",
        }

    def start(self, workers: int) -> None:
        """Start the master and so many workers. Returns when the master has all of them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        web = free_ports(1)[0]
        arguments = ["--host", HOST, "--port", str(self.port), "--webui-port", str(web)]
        self._master = self._spawn("master", f"{_MAIN}.master.Master", *arguments)
        wait_until(lambda: "Starting Spark master at" in self.log("master"), "the master")
        for _ in range(workers):
            self.add_worker()
        wait_until(lambda: self.log("master").count("Registering worker") >= workers, f"{workers} workers")

    def add_worker(self) -> None:
        number = len(self.workers)
        arguments = ["--host", HOST, "--cores", "1", "--memory", "2g", "--webui-port"]
        arguments += [str(free_ports(1)[0]), "--work-dir", str(self.folder / f"work-{number}"), self.master]
        self.workers.append(self._spawn(f"worker-{number}", f"{_MAIN}.worker.Worker", *arguments))

    def kill_worker(self, number: int) -> None:
        """Send SIGKILL to a worker and its executors."""
        for pid in self.executors(number):
            os.kill(pid, 9)
        kill(self.workers[number])

    def executors(self, number: int) -> list[int]:
        """The process ids of a worker's executors."""
        children = Path(f"/proc/{self.workers[number].pid}/task").glob("*/children")
        return [int(pid) for found in children for pid in found.read_text().split()]

    def log(self, name: str) -> str:
        """What a process has written so far."""
        path = self.folder / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def close(self) -> None:
        with ExitStack() as stack:
            for process in (self._master, *self.workers):
                if process is not None:
                    stack.callback(terminate, process, _GRACE_SECONDS)

    def _spawn(self, name: str, main_class: str, *arguments: str) -> "Popen[bytes]":
        command = [str(spark_home() / "bin" / "spark-class"), main_class, *arguments]
        environment: Mapping[str, str] = {**self.environment, "SPARK_DAEMON_MEMORY": "256m"}
        with open(self.folder / f"{name}.log", "wb") as log:
            return spawn(command, cwd=self.folder, output=log, env=environment)


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[StandaloneCluster]:
    """A running cluster. Its processes are ended when the block ends, also if the test fails."""
    cluster = StandaloneCluster(folder)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.close()


def python_without_us(folder: Path, with_packages: bool = True) -> Path:
    """A Python for executors that does not find this project by itself; and, if asked for, no other package either."""
    site = sysconfig.get_paths()["purelib"]
    path = folder / ("python-alone" if not with_packages else "python")
    # -S leaves out the files *.pth, one of which names the checkout.
    found = f'PYTHONPATH="$PYTHONPATH:{site}" ' if with_packages else ""
    path.write_text(f'#!/bin/sh\n{found}exec "{sys.executable}" -S "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path
