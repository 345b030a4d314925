"""Findings for people: rows of a terminal's tables, and a page. Pure.

The page loads nothing from elsewhere, has no script, and follows light and dark. Every name and every value is escaped:
client-ids are the clients' choice.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final

from pipeline.errors import printable
from pipeline.observe.findings import Findings, NoQuota, OverQuota, TooSmall, WouldBeHeld
from quota.units import age_text, rate_text

HEADINGS: Final = {
    "over_quota": "More than its quota, because it holds per broker",
    "would_be_held": "Would be throttled, if the quota held for the cluster",
    "too_small": "A bound too small to work with",
    "no_quota": "No quota",
}
NONE_FOUND: Final = {
    "over_quota": "No client got more than its quota.",
    "would_be_held": "No client would be throttled.",
    "too_small": "No bound is too small for what its clients send.",
    "no_quota": "Every client has a quota.",
}


def readable(findings: Findings, name: str) -> list[dict[str, Any]]:
    """The rows of a list for people; all rows have the same keys."""
    return [_readable(one) for one in getattr(findings, name)]


def _readable(one: OverQuota | WouldBeHeld | TooSmall | NoQuota) -> dict[str, Any]:
    who = {"client": name_of(one.user, one.client_id), "type": one.quota_type.partition("_")[0]}
    if isinstance(one, OverQuota):
        return who | {"× T": f"{one.times:.2f}", "O": rate_text(one.quota_type, one.observed), "why": one.reason}
    if isinstance(one, WouldBeHeld):
        return who | {"held": f"{one.held_share:.0%}", "longest": age_text(one.longest_wait_ms), "why": one.reason}
    suggested = rate_text(one.quota_type, one.suggested)
    if isinstance(one, TooSmall):
        return who | {"T": rate_text(one.quota_type, one.bound), "suggested": suggested, "why": one.reason}
    return who | {"p99": rate_text(one.quota_type, one.p99), "suggested": suggested, "why": one.reason}


def name_of(user: str, client_id: str) -> str:
    """A client or a sensor; `*` where it is that of all."""
    return f"{user or '*'}/{client_id or '*'}"


def findings_page(findings: Findings, about: Mapping[str, Any], next_steps: Sequence[tuple[str, str]]) -> str:
    """The page.

    Args:
        about: Facts of the observation by name: cluster, sources.
        next_steps: What each command does, and the command.
    """
    sections = {}
    for name, heading in HEADINGS.items():
        rows = readable(findings, name)
        sections[heading] = table(rows) if rows else paragraph(NONE_FOUND[name])
    over = findings.over_quota[:20]
    if over:
        series = ("times its quota", "one quota")
        bars = [(f"{name_of(one.user, one.client_id)} {one.quota_type}", (one.times, 1.0)) for one in over]
        chart = bar_chart("Times the quota, over all brokers", series, bars, lambda value: f"{value:.2f} × T")
        sections[HEADINGS["over_quota"]] = chart + sections[HEADINGS["over_quota"]]
    sections["What is not known"] = "".join(paragraph(text) for text in findings.not_known)
    sections["What next"] = "".join(paragraph(f"{what}: {command}") for what, command in next_steps)
    facts = {**about, "observed": age_text(findings.seconds * 1000), "clients": f"{findings.clients:,}"}
    return page("Observed · kquota", "What the cluster's quotas do", facts, sections)


# The parts of the page.

_ROWS: Final = 500
# The four colours differ also for people who do not see red and green.
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
    """The page; `about` are facts by name, `sections` HTML of this module by heading."""
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


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with a row for each mapping; numbers are on the right, None is empty. Long ones are cut, with a note."""
    if not rows:
        return paragraph("No rows.")
    header = "".join(
        f'<th class="{"n" if _is_number(value) else ""}">{_text(name.replace("_", " "))}</th>'
        for name, value in rows[0].items()
    )
    body = "".join(f"<tr>{''.join(_cell(value) for value in row.values())}</tr>" for row in rows[:_ROWS])
    more = paragraph(f"and {len(rows) - _ROWS} more") if len(rows) > _ROWS else ""
    return f'<div class="wide"><table><tr>{header}</tr>{body}</table></div>{more}'


def _cell(value: Any) -> str:
    if value is None:
        return "<td></td>"
    if _is_number(value):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
        return f'<td class="n">{shown}</td>'
    return f"<td>{_text(value)}</td>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    return escape(printable(str(value)))


# Charts as SVG: lines over time with gaps where there is no data, and bars.

_WIDTH: Final = 900
_LEFT: Final = 60
_BAR_HEIGHT: Final = 16
_NAMES_WIDTH: Final = 260
_TEXTS_WIDTH: Final = 90
_LONGEST_NAME: Final = 40

Text = Callable[[float], str]

Bars = tuple[str, Sequence[float | None]]
"""The bars of one name: one for each of the series, None for no bar."""


def bar_chart(title: str, series: Sequence[str], bars: Sequence[Bars], text: Text) -> str:
    """Horizontal bars: under each name one for each of the series, at most 4."""
    most = max((value for _, values in bars for value in values if value is not None), default=0) or 1
    room = _WIDTH - _NAMES_WIDTH - _TEXTS_WIDTH
    step = len(series) * _BAR_HEIGHT + 8
    drawn = []
    for place, (name, values) in enumerate(bars):
        top = place * step
        drawn.append(f'<text x="0" y="{top + 12}">{_text(_short(name))}</text>')
        for row, value in enumerate(values):
            if value is None:
                continue
            y, width = top + row * _BAR_HEIGHT, value / most * room
            drawn.append(
                f'<rect class="c{row}" x="{_NAMES_WIDTH}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT - 2}"/>'
                f'<text x="{_NAMES_WIDTH + 5 + width:.1f}" y="{y + 12}">{_text(text(value))}</text>'
            )
    bottom = len(bars) * step
    return _svg(title, bottom + 20, "".join(drawn) + _legend(series, bottom + 12))


def _svg(title: str, height: int, inner: str) -> str:
    name = _text(title)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{name}"><title>{name}</title>{inner}</svg>'


def _legend(names: Sequence[str], y: int) -> str:
    drawn, x = [], _LEFT
    for place, name in enumerate(names):
        drawn.append(f'<rect class="c{place}" x="{x}" y="{y - 9}" width="10" height="10"/>')
        drawn.append(f'<text x="{x + 14}" y="{y}">{_text(_short(name))}</text>')
        x += 34 + 7 * min(len(name), _LONGEST_NAME)
    return "".join(drawn)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
