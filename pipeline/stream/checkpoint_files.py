"""The files of Spark's checkpoint: on a local disk, or with a scheme (s3://…, file:/…) on Hadoop's file systems.

The job reads a checkpoint with a scheme as Spark itself writes it: by Hadoop's classes in Spark's JVM, with Spark's
settings for the store. `kquota doctor`, which starts no JVM, reads one in an object store by itself.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from pipeline.errors import first_line
from pipeline.store.access import STORE_SCHEMES, scheme_of
from pipeline.store.errors import StoreUnfit
from pipeline.store.objects import StoreObjects
from pipeline.stream.errors import CheckpointUnreadable

if TYPE_CHECKING:  # `kquota doctor` reads checkpoints where no pyspark is installed
    from pyspark.sql import SparkSession

Found = TypeVar("Found")

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class CheckpointFiles(Protocol):
    """The files of one checkpoint.

    Attributes:
        checkpoint: Where it is, as in the settings.
    """

    checkpoint: str

    def text(self, name: str) -> str | None:
        """The text of a file; None if there is no such file.

        Args:
            name: Its path in the checkpoint.

        Raises:
            CheckpointUnreadable: The file system does not answer.
        """
        ...

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder of the checkpoint, in no order; none if there is no such folder.

        Raises:
            CheckpointUnreadable: The file system does not answer.
        """
        ...


class LocalFiles:
    """A checkpoint on a local disk."""

    def __init__(self, checkpoint: str, folder: Path) -> None:
        self.checkpoint = checkpoint
        self._folder = folder

    def text(self, name: str) -> str | None:
        """See `CheckpointFiles`."""
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """See `CheckpointFiles`."""
        place = self._folder / folder
        return [path.name for path in place.iterdir()] if place.is_dir() else []


class HadoopFiles:
    """A checkpoint on one of Hadoop's file systems, read in Spark's JVM."""

    def __init__(self, checkpoint: str, spark: "SparkSession") -> None:
        self.checkpoint = checkpoint
        self._spark = spark

    def text(self, name: str) -> str | None:
        """See `CheckpointFiles`."""
        return self._call(name, self._read)

    def names(self, folder: str) -> list[str]:
        """See `CheckpointFiles`."""
        return self._call(folder, self._list)

    def _read(self, file_system: Any, path: Any) -> str | None:
        if not file_system.exists(path):
            return None
        jvm: Any = self._spark._jvm
        stream = file_system.open(path)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _list(self, file_system: Any, path: Any) -> list[str]:
        if not file_system.exists(path):
            return []
        return [str(status.getPath().getName()) for status in file_system.listStatus(path)]

    def _call(self, name: str, read: Callable[[Any, Any], Found]) -> Found:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

        jvm: Any = self._spark._jvm
        try:
            path = jvm.org.apache.hadoop.fs.Path(f"{self.checkpoint.rstrip('/')}/{name}")
            conf = self._spark._jsparkSession.sessionState().newHadoopConf()
            return read(path.getFileSystem(conf), path)
        except Py4JJavaError as exc:
            raise CheckpointUnreadable(self.checkpoint, first_line(exc)) from exc


class StoreFiles:
    """A checkpoint in an object store, read without Spark."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self._objects = StoreObjects(checkpoint)

    def text(self, name: str) -> str | None:
        """See `CheckpointFiles`."""
        with self._told():
            content = self._objects.read(name)
        return None if content is None else content.decode("utf-8")

    def names(self, folder: str) -> list[str]:
        """See `CheckpointFiles`."""
        with self._told():
            return self._objects.names(folder)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except StoreUnfit as exc:
            raise CheckpointUnreadable(self.checkpoint, exc.cause) from exc


def has_scheme(checkpoint: str) -> bool:
    """Whether a checkpoint is a URI, for Hadoop's file systems, and not a path on a local disk."""
    return _SCHEME.match(checkpoint) is not None


def open_checkpoint(checkpoint: str, spark: "SparkSession") -> CheckpointFiles:
    """The files of a checkpoint, as Spark finds them.

    Args:
        checkpoint: A path on a local disk, or a URI.
        spark: For a URI: its JVM reads the files.
    """
    return HadoopFiles(checkpoint, spark) if has_scheme(checkpoint) else LocalFiles(checkpoint, Path(checkpoint))


def open_without_spark(checkpoint: str) -> CheckpointFiles | None:
    """The files of a checkpoint that can be read without a JVM; None where only Hadoop's classes can read them.

    Args:
        checkpoint: A path on a local disk, or a URI. One with the scheme `file` is on a local disk.

    Raises:
        StoreLibraryMissing: It is in an object store, and nothing is installed that reads from there.
    """
    if not has_scheme(checkpoint):
        return LocalFiles(checkpoint, Path(checkpoint))
    if scheme_of(checkpoint) in STORE_SCHEMES:
        return StoreFiles(checkpoint)
    parts = urlsplit(checkpoint)
    return LocalFiles(checkpoint, Path(unquote(parts.path))) if parts.scheme.lower() == "file" else None
