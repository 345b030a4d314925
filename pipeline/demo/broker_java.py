"""The Java command of the embedded broker, with the class archive of this machine if there is one."""

from pathlib import Path

from pipeline.demo.broker_config import BrokerOptions, java_command
from pipeline.jvm.class_archive import class_archive, options_to_make, options_to_use
from pipeline.jvm.jars import broker_classpath
from pipeline.jvm.java import Java, find_java


def broker_java(options: BrokerOptions, log4j2: Path) -> list[str]:
    """The command up to the main class, for the broker and for the tool that formats its folder.

    Raises:
        JavaNotFound, JarLockInvalid, JarMissing, JarAltered: what it runs on is not there.
    """
    java, jars = find_java(), broker_jars()
    archive = broker_archive(java, jars)
    uses = options.archive_draft is None and archive.exists()
    return java_command(java.executable, jars, options, log4j2, options_to_use(archive) if uses else [])


def training_options(options: BrokerOptions) -> list[str]:
    """Further JVM options of the broker alone: those of a training run, if it is one."""
    return [] if options.archive_draft is None else options_to_make(options.archive_draft)


def broker_jars() -> list[Path]:
    """The class path, without symbolic links: an archive fits only the paths with which it was made."""
    return [jar.resolve() for jar in broker_classpath()]


def broker_archive(java: Java, jars: list[Path]) -> Path:
    """The path of the broker's class archive; the file may not exist."""
    return class_archive("broker", java.home, jars)
