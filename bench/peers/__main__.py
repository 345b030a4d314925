"""Other stream processors and ours, side by side on the same messages.

    python -m bench.peers [--events 1000000] [--only PATTERN] [--fresh] [--page docs/peers.md] [--quick]

The task: sums of five measures by second, user and client-id, exactly once, from a topic of usage events. Every sum of
every peer is compared with plain Python before any speed is printed.

    catch-up   a backlog waits when the peer starts (cold). Then the peer is stopped (SIGSTOP), as many events come, and
               it goes on (warm). The rate is that from its going on until its last result can be read
    steady     20 000 events a second in keyed objects; from the produce call of a probe until its result can be read;
               then kill -9, a restart at once, and the time until the result of a later probe can be read
    quotas     the broker's own quotas: how soon, and where the rate of a client ends, on one broker and on two

Each stage is kept under the cache folder for this commit. A run that is broken off goes on with the next stage;
`--only` runs some of them.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.__main__ import commit_now
from bench.machine import arguments, machine_line
from bench.peers.life import Amounts
from bench.peers.report import markdown, write_page
from bench.peers.roster import peers_folder
from bench.peers.stages import Store, all_stages, measured
from pipeline.jvm.jars import fetch

_WHOLE: Final = Amounts(
    events=1_000_000,
    clients=10_000,
    rounds=5,
    events_per_second=20_000,
    warm_seconds=60,  # from minute 2 of a life on, when the JVMs have compiled what they run
    seconds=60,  # all that a job does once a minute is in it
    native_seconds=60,
    hours=0.25,
)
_QUICK: Final = replace(
    _WHOLE, events=100_000, rounds=1, events_per_second=2_000, warm_seconds=5, seconds=10, native_seconds=25, hours=0.02
)


def main() -> int:
    given = arguments(__doc__, events=0, only="", fresh=False, quick=False, page=None)
    amounts = _QUICK if given.quick else _WHOLE
    if given.events:
        amounts = replace(amounts, events=given.events)
    fetch()
    store = Store(peers_folder() / "measured", commit_now())
    done: dict[str, dict[str, Any]] = {}
    for name, run in measured(all_stages(amounts), store, given.only, afresh=given.fresh):
        done[name] = run
        print(f"{name}: {run.get('verdict') or run.get('failure') or 'measured'}", flush=True)
    text = markdown(done, f"{machine_line()}, load average {os.getloadavg()[0]:.1f} at the end", str(amounts))
    print(f"\n{text}")
    if given.page:
        write_page(Path(given.page), text, done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
