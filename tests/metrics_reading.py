"""Reads the metrics of a running program where its log says that they are."""

import re

import httpx

from tests.waiting import PATIENCE_SECONDS


def metrics_named_in(log: str) -> str:
    """What the endpoint that is named in a log tells now; "" if none is named yet."""
    found = re.search(r"metrics at (http://\S+)", log)
    return httpx.get(found[1], timeout=PATIENCE_SECONDS).text if found else ""
