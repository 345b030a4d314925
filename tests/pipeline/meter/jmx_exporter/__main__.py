"""Writes jars.lock from the pom beside it, as `python -m deploy.jvm` does for those of the project."""

from pathlib import Path

from deploy.jvm.__main__ import write_lock

HERE = Path(__file__).parent

if __name__ == "__main__":
    header = "# The jmx_exporter. Written by `python -m tests.pipeline.meter.jmx_exporter` from the pom.xml here.\n"
    write_lock(HERE / "pom.xml", HERE / "jars.lock", header=header)
