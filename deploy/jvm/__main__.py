"""Adds the hashes that a lock of jars lacks: `python -m deploy.jvm [LOCK]`.

To take another jar or version, write its line without a hash, `set group:artifact:version`, and run this. What is
fetched then is trusted without a check, so review the changes of the lock before you commit them.
"""

import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from pipeline.jvm.jars import LockedJar, download, jars_unavailable, lock_path, sha256_of

_WITHOUT_HASH: Final = re.compile(r"(\w\S*) ([^\s:]+):([^\s:]+):([^\s:]+)")


def add_hashes(lock: Path) -> int:
    """Fetch the jars of the lines without a hash, and add it; returns how many these are. Raises `Unreachable`."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    jars: dict[int, LockedJar] = {}
    for number, line in enumerate(lines):
        if (found := _WITHOUT_HASH.fullmatch(line)) is not None:
            jar_set, group, artifact, version = found.groups()
            jars[number] = LockedJar(jar_set, group, artifact, version, sha256="")
    if not jars:
        return 0
    with tempfile.TemporaryDirectory(prefix="kquota-lock-") as folder:
        reason = download(list(jars.values()), Path(folder))
        if absent := [jar.file_name for jar in jars.values() if not Path(folder, jar.file_name).exists()]:
            raise jars_unavailable(absent, reason)
        for number, jar in jars.items():
            lines[number] += f" {sha256_of(Path(folder, jar.file_name))}"
    lock.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(jars)


if __name__ == "__main__":
    count = add_hashes(Path(sys.argv[1]) if sys.argv[1:] else lock_path())
    sys.stdout.write(f"{count} jars locked\n")
