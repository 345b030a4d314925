"""A receiver of alerts."""

from collections.abc import Iterator

import pytest

from tests.pipeline.alerts.receiving import Inbox, receiving


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with receiving() as running:
        yield running
