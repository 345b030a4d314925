"""Runs benchmarks one after the other: `python -m bench [NAME …]`. Each prints the machine and a table."""

import subprocess
import sys
from typing import Final

BENCHES: Final = {
    "engine": "one batch in the engine, 10 k to 1 M entities, compared with a NumPy group-sum",
    "timers": "insert, cancel and expire: our timing wheels, heapq, Kafka's timer and a DelayQueue on the JVM",
    "purgatory": "the published purgatory benchmark: the 0.8 design, Kafka's own, ours object by object and in batches",
    "closed_loop": "does an offender end at its quota: k = 1.2 … 50, one hour on a clock set by hand",
    "broker_quotas": "change and describe the native quotas of 10 000 entities on a real broker",
    "gate": "from a release that can be read until 200 threads and 2000 tasks go on",
    "catch_up": "events per second after an outage, compared with bare Spark on the same topic",
    "cli": "how long --help, throttles list, throttles explain, quotas describe and status take",
    "edit": "from a quota edit to the release on the topic, without traffic",
    "old_table": "a table after 200 000 commits and upkeep, compared with a new one",
    "probe": "from a client's event to its throttle record, under 20 k ev/s",
    "recovery": "from kill -9 until the first record is readable, 100 k entities",
    "stop": "from SIGTERM to the end of the process: starting, idle, under load, in a backlog",
    "what_if": "a day of 1 000 clients and a week of 100 clients, by the second, replayed with other quotas",
}

_MODULES: Final = {"timers": "bench.purgatory.timers"}


def main(names: list[str]) -> int:
    """Run the named benchmarks; without a name all of them. Returns 2 for an unknown name, 1 if one of them fails."""
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        listed = "".join(f"\n  {name:<12} {what}" for name, what in BENCHES.items())
        sys.stderr.write(f"'bench' must be one or more of these names; got {', '.join(unknown)}:{listed}\n")
        return 2
    failed = 0
    for name in names or BENCHES:
        print(f"\n== {name}: {BENCHES[name]}", flush=True)
        command = [sys.executable, "-m", _MODULES.get(name, f"bench.{name}")]
        failed |= subprocess.run(command, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
