"""One bad quota file per mistake: each is refused, the error names line and entry, and the table is not changed."""

import json
from pathlib import Path
from typing import Final

import pytest

from tests.pipeline.cli.running import kquota, new_tables

FILES: Final = Path(__file__).parent / "bad_quota_files"

MISTAKES: Final[dict[str, list[str]]] = json.loads(FILES.with_suffix(".json").read_text())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = new_tables(tmp_path_factory.mktemp("tables"))
    kquota("quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1024", "--tables", folder)
    return folder


def test_every_bad_file_has_its_message() -> None:
    assert sorted(path.name for path in FILES.iterdir()) == sorted(MISTAKES)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_bad_file_is_refused_as_a_whole(name: str, root: str) -> None:
    before = kquota("quotas", "describe", "--tables", root)
    refused = kquota("quotas", "apply", "-f", str(FILES / name), "--prune", "--tables", root)
    assert refused.exit_code == 5
    assert refused.stdout == ""
    assert refused.stderr == (
        f"kquota: quotas of {FILES / name} are not valid, nothing was changed: {'; '.join(MISTAKES[name])}. "
        "Fix: correct these places; a quota is written like "
        "{user: alice, client_id: etl, producer_byte_rate: 1MB/s}\n"
    )
    assert kquota("quotas", "describe", "--tables", root) == before
