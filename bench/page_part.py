"""The part of a page that a program writes, between two marks."""

from pathlib import Path


def write_part(page: Path, begin: str, end: str, text: str) -> None:
    """Put a text between the marks, in place of what is there.

    Args:
        page: has both marks, each once.
        begin: the first mark.
        end: the second one.
        text: without lines at its ends.
    """
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
