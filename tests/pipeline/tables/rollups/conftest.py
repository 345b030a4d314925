"""In these tests each stored batch of usage is a piece that is summed by itself."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.tables.reading._ROWS_OF_A_PIECE", 1)
        yield
