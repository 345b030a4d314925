"""Tables that a job has lived in for a minute, once for all tests of the dashboard; only looked at."""

from pathlib import Path

import pytest

from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.pipeline.dashboard.shop import START_MS, lived_shop


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> LivedTables:
    """Six clients, of which two are over their quota, and one edit on the way."""
    folder: Path = tmp_path_factory.mktemp("shop")
    return lived_shop(folder, START_MS)
