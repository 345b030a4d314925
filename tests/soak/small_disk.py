"""A disk that is small enough to be filled: a tmpfs. Only root may mount one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_CHUNK: Final = bytes(1 << 20)


class SmallDisk:
    """A mounted disk.

    Args:
        folder: Where the disk is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Fill the disk until the end of the block."""
        try:
            with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(_CHUNK)
            yield
        finally:
            self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk | None]:
    """Mount a disk in an empty folder. It and its content are gone after the block. None if it cannot be mounted."""
    size = f"size={megabytes}m"
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        print(f"no disk will be full: {mounted.stderr.strip()}", flush=True)  # noqa: T201
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(folder)], check=False)
