"""Makes the files of a release: `python -m deploy.release FOLDER`.

    kafka_quota_pipeline-VERSION-py3-none-any.whl   to install
    kafka_quota_pipeline-VERSION.tar.gz             the sources; its deploy/ has the image's recipe and all other files
    kquota-reporter-VERSION.jar                     for `metric.reporters` of the brokers
    kafka-quota-pipeline-VERSION.cdx.json           all parts of a checkout (CycloneDX 1.6)
    kquota-image-VERSION.cdx.json                   all parts of the image
    SHA256SUMS                                      of the files above; `sha256sum --check SHA256SUMS`

All is made twice, in two folders, and must be equal to the byte. The lists of parts are those that `cyclonedx-py` makes
of the locks, and the jars.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from deploy.reporter.__main__ import make as make_reporter
from pipeline.errors import PipelineError
from pipeline.jvm.jars import LockedJar, read_lock
from pipeline.meter.reporter import REPORTER_JAR

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = ROOT / "deploy" / "requirements.lock"
IMAGE_LOCK: Final = ROOT / "deploy" / "image" / "requirements.lock"
SUMS: Final = "SHA256SUMS"


def make_release(folder: Path) -> list[Path]:
    """Write all files of a release into a folder; what the folder held before is gone.

    Returns:
        The files, `SHA256SUMS` last.

    Raises:
        PipelineError: The reporter does not compile, a build fails, or two builds differ. The folder is then as it was.
    """
    with tempfile.TemporaryDirectory() as name:
        first, second = (_build(Path(name) / which) for which in ("first", "second"))
        if first.read_bytes() != second.read_bytes():
            lines = set(first.read_text("utf-8").splitlines()) ^ set(second.read_text("utf-8").splitlines())
            differing = sorted({line.split()[1] for line in lines})
            message = f"two builds of the same sources differ: {', '.join(differing)}"
            raise PipelineError(message, "look for a time, a path or an unsorted list in these files")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(first.parent, folder)
    return [*sorted(path for path in folder.iterdir() if path.name != SUMS), folder / SUMS]


def _build(folder: Path) -> Path:
    """Returns the path of the sums."""
    folder.mkdir()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    make_reporter(REPORTER_JAR)  # the wheel and the sources hold it
    shutil.copyfile(REPORTER_JAR, folder / f"kquota-reporter-{version}.jar")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--target", "sdist", "--directory"]
    _output_of([*command, str(folder)], "compare [tool.hatch] in pyproject.toml with the files of the checkout")
    for name, lock in (("kafka-quota-pipeline", LOCK), ("kquota-image", IMAGE_LOCK)):
        (folder / f"{name}-{version}.cdx.json").write_text(list_of_parts(lock), encoding="utf-8")
    files = sorted(folder.iterdir())
    sums = folder / SUMS
    sums.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files))
    return sums


def list_of_parts(lock: Path) -> str:
    """All packages of a lock and all jars, as CycloneDX 1.6 in JSON; the same locks give the same bytes.

    Raises:
        PipelineError: The lock is none that pip reads.
    """
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--spec-version", "1.6", "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), str(lock)]
    document = json.loads(_output_of(command, f"pip must be able to read {lock.name}"))
    document["components"] += [_part_of(jar) for jar in read_lock(ROOT / "deploy" / "jvm" / "jars.lock")]
    return json.dumps(document, indent=1) + "\n"


def _part_of(jar: LockedJar) -> dict[str, Any]:
    purl = f"pkg:maven/{jar.group}/{jar.artifact}@{quote(jar.version)}?type=jar"
    return {
        **{"type": "library", "bom-ref": purl, "purl": purl},
        **{"group": jar.group, "name": jar.artifact, "version": jar.version},
        # Spark's are for the job; the broker is the demo's. The compiler has made a part and runs nowhere.
        "scope": "excluded" if jar.jar_set == "compiler" else "optional",
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
        "properties": [{"name": "kquota:set", "value": jar.jar_set}],
    }


def _output_of(command: list[str], fix: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        message = f"{command[2]} failed: {' '.join(done.stderr.strip().splitlines()[-1:])}"
        raise PipelineError(message, fix)
    return done.stdout


def main(folder: Path) -> int:
    """Print each file and its size; returns the exit code."""
    try:
        files = make_release(folder)
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    for path in files:
        sys.stdout.write(f"{path}  {path.stat().st_size} bytes\n")
    sys.stdout.write("built twice: equal to the byte\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
