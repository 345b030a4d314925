"""Writes jars.lock from the pom beside it, as `python -m pipeline.jvm.jars lock` does for those of the project."""

from pathlib import Path

from pipeline.jvm.jar_lock_making import write_lock
from pipeline.jvm.jars import machine_sources, pyspark_jars_folder

HERE = Path(__file__).parent

if __name__ == "__main__":
    folder = pyspark_jars_folder()
    assert folder is not None
    downloads = [source for source in machine_sources(folder) if source.attempts > 1]
    header = "# A broker of Kafka 3.9. Written by `python -m tests.pipeline.meter.kafka_3_9` from the pom.xml here.\n"
    write_lock(HERE / "pom.xml", HERE / "jars.lock", downloads, folder, sets=("broker",), header=header)
