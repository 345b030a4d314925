"""One HTML page with tables and charts. It loads nothing from elsewhere, has no script, and follows light and dark.

Every name and every value is escaped here: client-ids are the clients' choice.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from pipeline.errors import printable

_ROWS: Final = 500
# The four colours are told apart also by those who do not see red and green.
_STYLE: Final = """
:root{color-scheme:light dark;--text:#1c1c1c;--page:#fff;--rule:#ddd;--gap:#ececec;
--c0:#5f6b76;--c1:#c2410c;--c2:#0072b2;--c3:#8a6d00;--new:#c2410c;--gone:#15803d}
@media(prefers-color-scheme:dark){:root{--text:#e8e8e8;--page:#161616;--rule:#3a3a3a;--gap:#262626;
--c0:#9aa7b4;--c1:#f97316;--c2:#56b4e9;--c3:#e6c229;--new:#fb923c;--gone:#4ade80}}
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:960px;padding:0 1rem;color:var(--text);
background:var(--page)}
table{border-collapse:collapse;width:100%;margin:1rem 0}
th,td{text-align:left;padding:.25rem .5rem;border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums;
max-width:24rem;overflow-wrap:break-word}
td.n,th.n{text-align:right}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}.wide{overflow-x:auto}
svg{width:100%;height:auto;overflow:visible}svg text{font-size:11px;fill:var(--text)}.line{fill:none;stroke-width:1.5}
rect.c0{fill:var(--c0)}rect.c1{fill:var(--c1)}rect.c2{fill:var(--c2)}rect.c3{fill:var(--c3)}
.line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}
.gap{fill:var(--gap)}.new{color:var(--new)}.gone{color:var(--gone)}
"""


def page(title: str, heading: str, about: Mapping[str, Any], sections: Mapping[str, str]) -> str:
    """The page.

    Args:
        title: Its title.
        heading: Its heading.
        about: What the report is about: names and values.
        sections: Heading -> HTML, made by this module and `pipeline.reports.plots`.
    """
    facts = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in about.items())
    body = "".join(f"<h2>{_text(name)}</h2>{html}" for name, html in sections.items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style>"
        f"<h1>{_text(heading)}</h1><table>{facts}</table>{body}</html>\n"
    )


def paragraph(text: str) -> str:
    """A paragraph of text."""
    return f"<p>{_text(text)}</p>"


def figures(values: Mapping[str, Any]) -> str:
    """A table of names and numbers."""
    rows = "".join(
        f'<tr><th>{_text(name.replace("_", " "))}</th><td class="n">{value:,}</td></tr>'
        for name, value in values.items()
    )
    return f"<table>{rows}</table>"


def table(rows: Sequence[Mapping[str, Any]], marks: Mapping[str, str] | None = None) -> str:
    """A table with a row for each mapping; numbers are on the right, None is empty. Long ones are cut, and say so.

    Args:
        rows: They share their keys, which are the header.
        marks: Text of a cell -> its CSS class: `new` or `gone`.
    """
    if not rows:
        return paragraph("Nothing.")
    header = "".join(
        f'<th class="{"n" if _is_number(value) else ""}">{_text(name.replace("_", " "))}</th>'
        for name, value in rows[0].items()
    )
    body = "".join(f"<tr>{''.join(_cell(value, marks or {}) for value in row.values())}</tr>" for row in rows[:_ROWS])
    more = paragraph(f"and {len(rows) - _ROWS} more") if len(rows) > _ROWS else ""
    return f'<div class="wide"><table><tr>{header}</tr>{body}</table></div>{more}'


def _cell(value: Any, marks: Mapping[str, str]) -> str:
    if value is None:
        return "<td></td>"
    if _is_number(value):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
        return f'<td class="n">{shown}</td>'
    mark = marks.get(value)
    return f'<td class="{mark}">{_text(value)}</td>' if mark else f"<td>{_text(value)}</td>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return escape(printable(str(value)))
