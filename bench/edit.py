"""From a quota edit to the release on the topic, without traffic.

A client is throttled because it is far above its quota. Then its bound is raised so that it owes nothing. The time is
measured from the moment the edit's commit is durable until a `read_committed` consumer has the release record. No usage
is sent meanwhile.

    python -m bench.edit [--edits 20] [--trigger-ms 500]

The target is one trigger plus 150 ms.
"""

import time
from contextlib import closing
from typing import Final

from bench.machine import arguments
from bench.pages import percentiles
from bench.stage import PROBE_BOUND, Prober, Stage, staged

_HIGH: Final = 1e12


def main() -> None:
    asked = arguments(__doc__, edits=20, trigger_ms=500)
    with staged() as stage, stage.running(asked.trigger_ms), closing(Prober(stage.servers)) as prober:
        latencies_ms = [_edit(stage, prober, number) for number in range(asked.edits)]
    p50, p95 = percentiles(latencies_ms, (50, 95))
    print(f"trigger {asked.trigger_ms} ms, {len(latencies_ms)} edits, commit durable -> release readable")
    print(f"p50 {p50:.0f}, p95 {p95:.0f}, most {max(latencies_ms):.0f} ms; target {asked.trigger_ms + 150} ms")


def _edit(stage: Stage, prober: Prober, number: int) -> float:
    """Throttle a client that no other round uses, raise its bound, wait for its release. Returns the latency in ms."""
    user = f"edit-{number}"
    stage.alter(user, PROBE_BOUND)
    time.sleep(1)  # the job looks for edits each trigger
    prober.throttle(user)
    time.sleep(0.5 + (number * 0.137) % 1)  # edits happen at any time between two triggers
    stage.alter(user, _HIGH)
    began = time.perf_counter()
    prober.await_record(user, "release")
    return (time.perf_counter() - began) * 1_000


if __name__ == "__main__":
    main()
