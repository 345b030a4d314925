from pathlib import Path

import pytest

from pipeline.errors import Conflict
from pipeline.tables.layout import claim_tables, create_missing, owner_of


def test_tables_belong_to_the_first_job_that_starts_on_them(tmp_path: Path) -> None:
    create_missing(str(tmp_path))
    assert owner_of(str(tmp_path)) is None
    claim_tables(str(tmp_path), "first")
    claim_tables(str(tmp_path), "first")
    with pytest.raises(Conflict, match=r"belong to job 'first', not to 'second'.*--job first") as refused:
        claim_tables(str(tmp_path), "second")
    assert refused.value.exit_code == 4
    assert owner_of(str(tmp_path)) == "first"


def test_a_root_without_tables_belongs_to_nobody(tmp_path: Path) -> None:
    assert owner_of(str(tmp_path)) is None
