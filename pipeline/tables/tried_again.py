"""Work on the tables that may fail and is tried again later: throttling goes on meanwhile."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError

from pipeline.errors import PipelineError, first_line


@contextmanager
def tried_again(log: logging.Logger, what: str) -> Iterator[None]:
    """Log a failure of the block in one line instead of raising it. Mistakes of the program are raised.

    Args:
        log: Where.
        what: Begins the line: "<what> failed and is tried again: …".
    """
    try:
        yield
    except (PipelineError, DeltaError, OSError, ValueError) as exc:
        log.warning("%s failed and is tried again: %s", what, first_line(exc))
