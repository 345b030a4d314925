"""A real store that speaks S3, for tests: versitygw, which keeps objects as files and knows conditional put.

go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from pydantic import SecretStr

from pipeline.process import free_ports
from pipeline.settings.model import StoreSettings
from pipeline.tables.object_store import reach_with
from tests.waiting import wait_until

KEY: Final = "kquota-tests"
SECRET: Final = "a-secret-that-nothing-prints"  # noqa: S105 - of a server that lives as long as the tests
REGION: Final = "eu-north-1"
BUCKET: Final = "kquota"
INSTALL: Final = "go install github.com/versity/versitygw/cmd/versitygw@v1.8.0"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running server; the folder has its buckets as folders, the log one line a request."""

    endpoint: str
    folder: Path
    access_log: Path

    @property
    def settings(self) -> StoreSettings:
        return StoreSettings(
            endpoint=self.endpoint, region=REGION, access_key_id=SecretStr(KEY), secret_access_key=SecretStr(SECRET)
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            "KQUOTA_STORE__ENDPOINT": self.endpoint,
            "KQUOTA_STORE__REGION": REGION,
            "KQUOTA_STORE__ACCESS_KEY_ID": KEY,
            "KQUOTA_STORE__SECRET_ACCESS_KEY": SECRET,
        }

    @property
    def aws_environment(self) -> dict[str, str]:
        """The same as the variables of AWS's own tools; delta-rs wants to be told that it may speak HTTP."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def address(self, name: str) -> str:
        """An address in the bucket, which this process reaches from now on."""
        address = f"s3://{BUCKET}/{name}"
        reach_with(self.settings, address)
        return address


def versitygw() -> str | None:
    return shutil.which("versitygw") or shutil.which("versitygw", path=str(Path.home() / "go" / "bin"))


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """A server with one bucket, ended with the block; the folder may hold the objects of an earlier server."""
    program = versitygw()
    if program is None:
        pytest.skip(f"needs versitygw, a server that speaks S3: {INSTALL}")
    (folder / "store" / BUCKET).mkdir(parents=True, exist_ok=True)
    (port,), log = free_ports(1), folder / "access.log"
    command = [program, "--port", f"127.0.0.1:{port}", "--region", REGION, "--quiet", "--health", "/health"]
    command += ["--access-log", str(log), "posix", str(folder / "store")]
    server = subprocess.Popen(
        command,
        env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _answers(port) or server.poll() is not None, "the store to answer")
        assert server.poll() is None, f"versitygw ended with {server.returncode}"
        yield ObjectStore(f"http://127.0.0.1:{port}", folder / "store", log)
    finally:
        server.terminate()
        server.wait(60)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
