"""What a test looks for in the log."""

import pytest


def messages_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """What one logger has said. `caplog` also holds what is said by threads that an earlier test left behind."""
    return [record.getMessage() for record in caplog.records if record.name == logger]
