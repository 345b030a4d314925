"""Tables that a job has lived in for a minute, once for all tests of the dashboard; only looked at."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.dashboard.shop import LivedTables


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> "LivedTables":
    """Six clients, of which two are over their quota, and one edit on the way."""
    from tests.pipeline.dashboard.shop import START_MS, lived_shop  # noqa: PLC0415 - imports the Kafka client

    return lived_shop(tmp_path_factory.mktemp("shop"), START_MS)
