"""Writes the claims of docs/measured.md and README.md: each with its figure, from the page that a command has written.

    python -m bench --proof

A figure is read from the page, never typed: who runs the command again and then this one has new figures in both.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.pages import table, write_part

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = DOCS / "measured.md"
README: Final = DOCS.parent / "README.md"
MARKS: Final = ("<!-- proof: written by `python -m bench --proof` -->", "<!-- proof end -->")

_DAY: Final = re.compile(r"\d+ cores, [^\n]*?Python [\d.]+, (?:Open)?(?:Java|JDK) [\d.]+, (20\d\d-\d\d-\d\d)")


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim."""

    what: str  # is claimed
    page: str  # below docs/, that has the figure
    figure: Callable[[str], str]  # from the text of the page
    refuted: str  # what would show that the claim is wrong
    command: str = ""  # what writes that page; "" where the page itself says it
    is_in_readme: bool = False  # whether README.md makes it


def found(pattern: str, form: str) -> Callable[[str], str]:
    """A figure made of what a pattern finds in the page."""

    def figure(page: str) -> str:
        place = re.search(pattern, page, re.MULTILINE)
        if place is None:
            msg = f"no place of the page is like {pattern}"
            raise LookupError(msg)
        return form.format(*place.groups())

    return figure


def kills(page: str) -> str:
    """How often a job was killed at the places of the page, and what its verifier found."""
    rows = re.findall(r"^\| `[a-z_.]+` \| (\d+) \| ([\d.]+) \|$", page, re.MULTILINE)
    sums = re.search(r"(\d+) kills: (\d+ lost, \d+ duplicated, \d+ different)\.", page)
    if not rows or sums is None:
        msg = "no row of the page has kills"
        raise LookupError(msg)
    compared, recovered = (list(map(float, column)) for column in zip(*rows, strict=True))
    return (
        f"{sums[1]} kills, {sum(compared):,.0f} comparisons: {sums[2]}; "
        f"first micro-batch after {max(recovered):g} s at worst"
    )


def long_run(page: str) -> str:
    """The lowest and the highest of the long-run rates in the table of the closed loop."""
    rows = page.partition("<!-- closed loop: begin -->")[2].partition("<!-- closed loop: end -->")[0]
    rates = [float(rate) for rate in re.findall(r"\| ([\d.]+); ", rows)]
    return f"{min(rates):.3f} to {max(rates):.3f} of T, from 1.05 to 50 times T"


def _of_peers(what: str, pattern: str, form: str, refuted: str) -> Claim:
    return Claim(what, "peers.md", found(pattern, form), refuted, command="make bench-peers")


CLAIMS: Final = (
    Claim(
        "The same answers as Kafka's own quota classes, 4.3.1 and 4.4.0",
        "bench/conformance.md",
        found(r"^([\d ]+) records, (\d+) mismatches", "{0} recorded requests, {1} mismatches"),
        "one mismatch",
        is_in_readme=True,
    ),
    Claim(
        "`kill -9` at any place loses nothing and repeats nothing",
        "faults.md",
        kills,
        "one lost, duplicated or different row",
        command='make faults ARGS="--rounds 3"',
        is_in_readme=True,
    ),
    Claim(
        "A record can be read within half a second of the event, at 20 000 events a second",
        "bench/probe.md",
        found(r"on: p50 (\d+) ms.*?p99 (\d+) ms", "p50 {0} ms, p99 {1} ms"),
        "p50 above 250 or p99 above 500 ms, quiet machine",
        is_in_readme=True,
    ),
    Claim(
        "An offender ends at its quota",
        "measured.md",
        long_run,
        "a long-run rate above 1.05 T",
        command="python -m bench closed_loop -- --write",
        is_in_readme=True,
    ),
    Claim(
        "Brokers' own quotas give a client on two brokers nearly twice its quota; one level for both holds it",
        "enforce.md",
        found(
            r"10 · T \| mirror .*\| ([\d.–]+) \|\n\| 10 · T \| cluster .*\| ([\d.–]+) \|$",
            "each 50 s at 10 · T: {1} of T, mirrored {0}",
        ),
        "a 50 s mean outside 0.85 to 1.15 T from 40 s after a move on",
        command="python -m bench split_client -- --write",
    ),
    _of_peers(
        "Catches up as fast as Kafka Streams, on objects",
        r"objects\*\*[^÷]*÷ Kafka Streams = ([\d.]+) warm, ([\d.]+) cold",
        "{0} times as fast warm, {1} cold",
        "a ratio below 1, warm",
    ),
    _of_peers(
        "Catches up faster than Kafka Streams, on arrays",
        r"arrays of 100\*\*[^÷]*÷ Kafka Streams = ([\d.]+) warm, ([\d.]+) cold",
        "{0} times as fast warm, {1} cold",
        "a ratio below 1, warm; the target is 3",
    ),
    _of_peers(
        "Half of the answers of Kafka Streams come sooner under a steady load",
        r"\| kquota \| right \| (\d+) \| (\d+) \| ([\d.]+) \| \d+ \|.*\n"
        r"\| Kafka Streams \| right \| (\d+) \| (\d+) \| ([\d.]+)",
        "kquota p50 {0}, p99 {1} ms, back after {2} s; Streams {3}, {4} ms, {5} s",
        "a p50 of kquota that is lower",
    ),
    Claim(
        "The reporter costs a busy broker less than 3 % of its CPU",
        "bench/reporter.md",
        found(r"with the reporter: CPU x ([\d.]+) .*?p99 x ([\d.]+); limits", "CPU × {0}, produce p99 × {1}"),
        "CPU above × 1.03, or p99 above × 1.05",
    ),
    Claim(
        "The reporter's sums are those of the request log",
        "bench/reporter.md",
        found(r"^([\d,]+) bytes of (\d+) sums of clients.*: all as in the request log", "{0} bytes, {1} sums: equal"),
        "one sum that differs by a byte",
    ),
    Claim(
        "Killed workers of a Spark cluster change no row",
        "cluster.md",
        found(
            r"workers killed .* \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|",
            "{0} comparisons: {1} lost, {2} duplicated, {3} different",
        ),
        "one lost, duplicated or different row",
        command="python -m tests.spark_cluster",
    ),
)


def cells(claim: Claim) -> tuple[str, str, str, str, str]:
    """Claim, figure, command, day, what would refute it."""
    page = (DOCS / claim.page).read_text(encoding="utf-8")
    figure = claim.figure(page)
    day = _DAY.findall(page)[0]
    command = claim.command or re.findall(r"^Written by `(.+?)` at commit", page, re.MULTILINE)[0]
    return claim.what, f"[{figure}]({claim.page})", f"`{command}`", day, claim.refuted


def page_table() -> str:
    """The table of docs/measured.md: every claim."""
    return table(["claim", "figure", "command", "day", "refuted by"], list(map(cells, CLAIMS)))


def readme_table() -> str:
    """The table of README.md."""
    of_readme = (cells(claim) for claim in CLAIMS if claim.is_in_readme)
    rows = [[what, figure.replace("](", "](docs/"), day] for what, figure, _, day, _ in of_readme]
    return table(["what", "measured", "day"], rows)


def write() -> None:
    """Write both."""
    write_part(PAGE, *MARKS, page_table())
    write_part(README, *MARKS, readme_table())
