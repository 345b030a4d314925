"""Runs benchmarks one after the other: `python -m bench [--report] [--proof] [NAME …] [-- OPTIONS]`.

Each prints the machine and a table. With `--report` what it printed is also written to docs/bench/NAME.md, so no figure
is typed; `--proof` writes the claims of docs/measured.md and README.md from these pages. What stands after `--` goes to
each of them, and into its report.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import proof

BENCHES: Final = {
    "engine": "one batch in the engine, 100 k and 1 M entities, compared with a NumPy group-sum",
    "timers": "insert, cancel and expire: our batch wheel, heapq, Kafka's timer and a DelayQueue on the JVM",
    "purgatory": "the published purgatory benchmark: the 0.8 design, Kafka's own, ours object by object and in batches",
    "conformance": "4 338 recorded requests of Kafka's own quota classes, played on the engine",
    "closed_loop": "does an offender end at its quota: k = 1.05 … 50, one hour on a clock set by hand",
    "edit": "from a quota edit to the release on the topic, without traffic",
    "held": "10 k and 100 k clients throttled and renewed at once, on the topic",
    "peers": "Kafka Streams and bare Spark compared with ours: right sums first, then speed",
    "probe": "from a client's first event to its throttle record, memory and cores of the job, under 20 k ev/s",
    "reporter": "what the reporter in a broker costs it: CPU, produce p99; its sums, to the byte",
    "split_client": "a stock client on two brokers, 90/10 and then 10/90: their sum, with Kafka's quotas and with ours",
    "tenants": "what the members of a tenant get, and when: six cases of ten minutes on a clock set by hand",
    "views": "the dashboard with 10 000 clients, while the job runs: p95 of each view, memory of the server",
    "what_if": "15 minutes of the demo and a day of 1 000 clients, replayed with other quotas",
}
REPORTS: Final = Path(__file__).parents[1] / "docs" / "bench"
_MODULES: Final = {
    "timers": "bench.purgatory.timers",
}


def main(arguments: Sequence[str]) -> int:
    """Run the named benchmarks; without a name all of them. Returns 2 for an unknown name, 1 if one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Runs benchmarks, one after the other.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(BENCHES)}; default: all")
    parser.add_argument("--report", action="store_true", help="write what each prints to docs/bench/NAME.md too")
    parser.add_argument("--proof", action="store_true", help="write the claims of docs/measured.md and README.md")
    own = list(arguments)
    end = own.index("--") if "--" in own else len(own)
    asked, options = parser.parse_args(own[:end]), own[end + 1 :]
    unknown = [name for name in asked.names if name not in BENCHES]
    if unknown:
        listed = "".join(f"\n  {name:<13} {what}" for name, what in BENCHES.items())
        sys.stderr.write(f"unknown: {', '.join(unknown)}. The benchmarks are:{listed}\n")
        return 2
    if asked.proof:
        proof.write()
        return 0
    commit, failed = commit_now(), 0
    for name in asked.names or BENCHES:
        print(f"\n== {name}: {BENCHES[name]}", flush=True)
        code, printed = _run(name, options)
        failed |= code != 0
        if asked.report and code == 0:
            page = REPORTS / f"{name}.md"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(report_text(name, commit, printed, options), encoding="utf-8")
            print(f"written to {page}", flush=True)
    return int(failed)


def report_text(name: str, commit: str, printed: str, options: Sequence[str] = ()) -> str:
    command = shlex.join(["python", "-m", "bench", "--report", name, *(["--", *options] if options else [])])
    return (
        f"# {name}\n\n{BENCHES[name][0].upper()}{BENCHES[name][1:]}.\n\n"
        f"Written by `{command}` at commit {commit}.\n\n```text\n{printed.strip()}\n```\n"
    )


def _run(name: str, options: Sequence[str]) -> tuple[int, str]:
    """Run one benchmark and pass on what it prints. Returns its exit code and its output."""
    command = [sys.executable, "-u", "-m", _MODULES.get(name, f"bench.{name}"), *options]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
    return running.returncode, "".join(lines)


def commit_now() -> str:
    """The commit of this checkout, and whether code differs from it. Pages do not count: reports are pages."""
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head or 'unknown'}{' (changed)' if _git('status', '--porcelain', '--', '.', ':!docs') else ''}"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=REPORTS.parents[1]).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
