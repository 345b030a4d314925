"""The SQL that `kquota tables views` prints; tests/deploy/test_sql.py runs it."""

from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.tables.layout import QUOTA_HISTORY, VIEWS, view_sql
from tests.pipeline.cli.running import kquota


@pytest.mark.parametrize("file", [VIEWS, QUOTA_HISTORY])
def test_no_variable_is_left(file: str) -> None:
    text = view_sql(file, "s3://lake/kquota/", "main.kquota")
    assert "${" not in text
    assert "USE main.kquota;" in text
    assert "s3://lake/kquota/quotas" in text


def test_a_folder_is_a_whole_path() -> None:
    assert f"LOCATION '{Path.cwd()}/here/usage'" in view_sql(VIEWS, "here", "kquota")


@pytest.mark.parametrize("schema", ["", "a.b.c", "a b", "a;DROP TABLE usage", "1a", "a."])
def test_a_schema_that_is_no_name_is_refused(schema: str) -> None:
    with pytest.raises(UsageError, match="is not a name, nor a catalog and a name"):
        view_sql(VIEWS, "s3://lake", schema)


@pytest.mark.parametrize("root", ["s3://it's", "/a`b", "/a\\b", "/a${b}"])
def test_a_root_that_would_end_the_text_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be used in SQL"):
        view_sql(VIEWS, root, "kquota")


def test_the_command_prints_the_file_for_the_tables_of_the_settings() -> None:
    printed = kquota("tables", "views", "--tables", "s3://lake/kquota", "--schema", "main.kquota")
    assert (printed.exit_code, printed.stdout) == (0, view_sql(VIEWS, "s3://lake/kquota", "main.kquota"))
    edits = kquota("tables", "views", "--tables", "s3://lake/kquota", "--quota-history")
    assert edits.stdout == view_sql(QUOTA_HISTORY, "s3://lake/kquota", "kquota")
    refused = kquota("tables", "views", "--schema", "a-b")
    assert refused.exit_code == 2
    assert "--schema a-b is not a name" in refused.stderr
