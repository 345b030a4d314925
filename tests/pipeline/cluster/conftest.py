"""The one broker of the sign-in and permission tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.cluster.secured import Secured


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Secured"]:
    """See `secured_broker`."""
    from tests.pipeline.cluster.secured import secured_broker  # noqa: PLC0415 - imports the Kafka client

    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running
