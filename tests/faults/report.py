"""The measured table of a page, which a command replaces."""

from pathlib import Path
from typing import Final

_BEGIN: Final = "<!-- measured -->\n"
_END: Final = "<!-- /measured -->"


def replace_table(report: Path, text: str) -> None:
    """Put a text in the place of what is between the two marks of a page."""
    before, _, rest = report.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    report.write_text(f"{before}{_BEGIN}{text}{_END}{after}", encoding="utf-8")
