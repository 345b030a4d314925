"""The first line of an exception's text."""

import pytest

from pipeline.errors import first_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one line.", "one line"),
        ("\n  the first\nthe second", "the first"),
        ("calling o1.go.\n: java.io.IOException: gone\n\tat a.B", "java.io.IOException: gone"),
        (
            "[STREAM_FAILED] Query ended. SQLSTATE: XXKST\n=== Streaming Query ===",
            "[STREAM_FAILED] Query ended. SQLSTATE: XXKST",
        ),
        ("", "ValueError"),
        (" \n", "ValueError"),
    ],
)
def test_the_first_line_is_what_an_exception_says_first(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line
