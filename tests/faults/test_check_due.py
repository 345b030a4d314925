"""Which looks the judge takes for looks at the end of a throttle."""

from typing import cast

import pytest

from tests.faults.books import Books
from tests.faults.case import Case
from tests.faults.check_due import is_end_of
from tests.faults.held import Held
from tests.faults.rules import Rules
from tests.faults.verdict import Verdict

_BEGIN_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("slice_ms", "due_after_ms", "is_end"),
    [
        (60, 0, False),  # due at once: shorter than a lead, and shorter than the slack of 100 ms
        (60, 29, False),
        (60, 30, True),
        (60, 60, True),
        (60, 90, True),
        (3_000, 2_000, False),  # one lead of 1 s before its end
        (3_000, 2_899, False),
        (3_000, 2_900, True),
        (3_000, 3_100, True),
    ],
)
def test_a_look_belongs_to_the_instant_that_is_nearer_to_when_it_was_due(
    slice_ms: int, due_after_ms: int, is_end: bool
) -> None:
    held = Held({"throttled_until_ms": _BEGIN_MS + slice_ms, "throttle_time_ms": slice_ms})
    case = Case(cast(Books, None), Rules(), Verdict())
    assert is_end_of(case, "1", {"due_ms": _BEGIN_MS + due_after_ms}, held) is is_end
