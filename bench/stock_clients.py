"""Stock clients as processes of their own, in Python and in Java; what they print once a second is kept."""

import io
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any, Final

from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.process import spawn, terminate
from pipeline.demo.sign_in import plain_sign_in
from pipeline.demo.stock_client import StockWork
from pipeline.jvm.jars import broker_classpath
from pipeline.jvm.java import Java

_STOP_SECONDS: Final = 5.0
_SOURCE: Final = Path(__file__).with_name("StockProducer.java")


class StockProcess:
    """A client that runs.

    Args:
        process: its standard output has a JSON object in each line.

    Attributes:
        reports: when each came, in seconds of the monotonic clock, and what it says.
    """

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.reports: list[tuple[float, dict[str, Any]]] = []
        self._process = process
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def throttle_max_ms(self) -> float:
        """The longest time that an answer told it to wait."""
        return max((float(report["broker_throttle_max_ms"]) for _, report in self.reports), default=0.0)

    def answer_ms(self, begin: float, end: float) -> list[float]:
        """How long its requests took that were reported between two instants."""
        return [took_ms for at, report in self.reports if begin <= at < end for took_ms in report["answer_ms"]]

    def close(self) -> None:
        """End it, and read what is left."""
        terminate(self._process, _STOP_SECONDS)
        self._reading.join()

    def _read(self) -> None:
        with self._process.stdout or io.BytesIO() as lines:
            for line in lines:
                with suppress(ValueError):  # what else it prints
                    self.reports.append((time.monotonic(), json.loads(line)))


def start_python(
    stack: ExitStack, folder: Path, broker: EmbeddedBroker, user: str, rate: float, requests_per_second: float
) -> StockProcess:
    """A kafka-python producer that sends to the topic of its name, with a client-id that is its name.

    Args:
        stack: ends it.
        folder: for its work.
        broker: knows the user, whose password is its name.
        user: the name.
        rate: bytes per second, while nothing slows it.
        requests_per_second: into how many requests that is cut.
    """
    options = {**plain_sign_in(broker.sasl_bootstrap_servers, user, user), "client_id": user}
    path = folder / f"{user}.json"
    work = StockWork("produce", user, (1.0,), rate, requests_per_second, options)
    path.write_text(json.dumps(asdict(work)), encoding="utf-8")
    return _started(stack, [sys.executable, "-m", "pipeline.demo.stock_client", str(path)])


def start_java(stack: ExitStack, broker: EmbeddedBroker, jdk: Java, user: str, record_bytes: int) -> StockProcess:
    """A producer of Kafka's own Java client that sends records as fast as it can; else as `start_python`."""
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    config = {
        "bootstrap.servers": broker.sasl_bootstrap_servers,
        "client.id": user,
        "delivery.timeout.ms": "600000",  # as the Python one: what is in its memory lasts for minutes under the quota
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{login} username="{user}" password="{user}";',
    }
    class_path = os.pathsep.join(map(str, broker_classpath()))
    command = [str(jdk.executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", class_path, str(_SOURCE)]
    command += [user, str(record_bytes), *(f"{key}={value}" for key, value in config.items())]
    return _started(stack, command)


def _started(stack: ExitStack, command: list[str]) -> StockProcess:
    client = StockProcess(spawn(command, cwd=Path.cwd(), output=subprocess.PIPE))
    stack.callback(client.close)
    return client
