"""The class archive of the embedded broker, as its JVM makes and uses it."""

import subprocess
from pathlib import Path

import pytest

from pipeline.demo import broker as broker_java
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.demo.class_archives import make_broker_archive
from pipeline.jvm.jars import fetch
from pipeline.jvm.java import find_java

pytestmark = [pytest.mark.broker, pytest.mark.long]


def test_the_broker_uses_an_earlier_ones_archive_and_does_without_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch()
    monkeypatch.setattr("pipeline.jvm.java.cache_folder", lambda *_: tmp_path / "cache")
    assert make_broker_archive().endswith(" MB")
    archive = broker_java.broker_archive(find_java(), broker_java.broker_jars())
    assert archive.stat().st_size > 10_000_000
    assert {path.name for path in archive.parent.iterdir()} == {archive.name, "made-for"}

    log_of_classes = f"-Xlog:class+load:file={tmp_path}/%p.log"
    own = EmbeddedBroker(tmp_path / "broker", options=BrokerOptions(java_options=(log_of_classes,)))
    with own:
        of_broker = tmp_path / f"{own.pid}.log"
        (of_formatter,) = set(tmp_path.glob("*.log")) - {of_broker}
        assert source_of("kafka.server.KafkaRaftServer", of_broker).startswith("shared objects file")
        assert source_of("org.apache.kafka.common.utils.Utils", of_formatter).startswith("shared objects file")

    archive.unlink()
    archive.write_bytes(b"no archive")
    java = broker_java.broker_java(own.options, own.directory / "log4j2.properties")
    with subprocess.Popen([*java, "kafka.tools.StorageTool", "random-uuid"], stdout=subprocess.DEVNULL) as tool:
        pass
    assert tool.returncode == 0
    assert source_of("org.apache.kafka.common.Uuid", tmp_path / f"{tool.pid}.log").startswith("file:")


def source_of(name: str, log: Path) -> str:
    """Where a JVM has loaded a class from, by its log."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return next(line.partition(" source: ")[2] for line in lines if f"] {name} source: " in line)
