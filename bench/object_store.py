"""The job with its tables in an object store: nothing is lost by kills, and what it costs by trigger.

    python -m bench.object_store [--triggers 250 500 1000] [--rounds 3] [--checkpoints local stored]

Without rounds, or without triggers, that part of the page stays as it is.

The store is versitygw, which speaks S3, keeps objects on this machine's disk, and refuses a conditional put as Amazon
does. Broker, load, job and store share the machine.

First, for each trigger, a job under steady load: latency from the produce call of a client's first event above its
quota until a `read_committed` reader has the throttle record, and requests at the store. Then the kills: each round has
a load, a job that is killed with SIGKILL twice at random moments, and the verifier of the fault tests.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from unittest.mock import patch

from bench.machine import arguments, machine_line
from bench.pages import percentiles, row, table, write_part
from bench.stage import PROBED_LOAD, probing
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch
from tests.faults.stored_rounds import KILLS, play_stored
from tests.object_store import BUCKET, INSTALL, ObjectStore, object_store, versitygw

_OPERATION: Final = re.compile(r" s3_(\w+) (\S+) ")
_DAY_SECONDS: Final = 86_400
_MONTH_DAYS: Final = 30
# List prices of S3 Standard in us-east-1, US dollars for 1000 requests; a DELETE costs nothing.
PUT_PRICE: Final = 0.005
GET_PRICE: Final = 0.0004
_PUTS: Final = ("PutObject", "CopyObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
_LISTS: Final = ("ListObjectsV2", "ListObjects")
_GETS: Final = ("GetObject", "HeadObject")


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of a span of time, by their price."""

    puts: int  # writes
    lists: int  # listings, which cost as much as writes
    gets: int  # reads
    refused: int  # writes that met an object that was there already (412)
    seconds: float  # the span

    @classmethod
    def of(cls, lines: list[str], seconds: float) -> Self:
        operations: Counter[str] = Counter()
        refused = 0
        for line in lines:
            found = _OPERATION.search(line)
            operations[found[1] if found else ""] += 1
            refused += " 412 PreconditionFailed " in line
        puts, lists, gets = (sum(operations[name] for name in names) for names in (_PUTS, _LISTS, _GETS))
        return cls(puts, lists, gets, refused, seconds)

    def a_day(self, count: int) -> int:
        return round(count / self.seconds * _DAY_SECONDS)

    @property
    def dollars_a_month(self) -> float:
        """What Amazon charges for the requests of 30 days."""
        put_price = self.a_day(self.puts + self.lists) * PUT_PRICE
        return (put_price + self.a_day(self.gets) * GET_PRICE) / 1_000 * _MONTH_DAYS


class AccessLog:
    """The lines that a server's log gets while something is measured."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size

    def new_lines(self) -> list[str]:
        with self._path.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._offset)
            return log.read().splitlines()


PAGE: Final = Path(__file__).parents[1] / "docs" / "object-stores.md"
_WARM_UP_SECONDS: Final = 10.0


def main() -> int:
    options = {"checkpoints": ["local", "stored"], "triggers": [250, 500, 1_000, 2_000, 5_000], "stored": [1_000]}
    given = arguments(__doc__, rounds=3, **options, seconds=60.0, no_report=False)
    if versitygw() is None:
        sys.exit(f"needs versitygw, a server that speaks S3: {INSTALL}")
    fetch(lambda line: print(line, file=sys.stderr), "s3")
    machine = f"{machine_line()}, store versitygw on the same machine"
    print(machine)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with object_store(folder) as store, patch.dict(os.environ, store.environment):
            if given.triggers or given.stored:
                _by_trigger(store, given, machine)
            are_equal = _killed(folder, store, given, machine)
    return int(not are_equal)


def _killed(folder: Path, store: ObjectStore, given: argparse.Namespace, machine: str) -> bool:
    """Whether nothing was lost in any round. The page has each round as soon as it is judged."""
    rows = [table(["round", "checkpoint", "kills", "compared", "lost", "duplicated", "different", "recovery s, worst"])]
    places = [(number, checkpoint) for number in range(given.rounds) for checkpoint in given.checkpoints]
    if not places:
        return True
    print("\n" + "\n".join(rows), flush=True)
    are_equal = True
    with EmbeddedBroker(folder / "killed-broker") as broker:
        for number, checkpoint in places:
            is_equal, line = _round(folder, store, broker.bootstrap_servers, number, checkpoint == "stored")
            rows.append(line)
            print(line, flush=True)
            _report(given, "kills", [machine, "", *rows])
            are_equal = are_equal and is_equal
    return are_equal


def _round(folder: Path, store: ObjectStore, bootstrap_servers: str, number: int, is_stored: bool) -> tuple[bool, str]:
    outcome = play_stored(folder, store, bootstrap_servers, number, is_stored)
    verdict = outcome.verdict
    for difference in verdict["differences"]:
        print(f"    {difference}", flush=True)
    where, compared = "in the store" if is_stored else "local", sum(verdict["compared"].values())
    cells = [number + 1, where, KILLS, compared, *(verdict[kind] for kind in ("lost", "duplicated", "different"))]
    return bool(verdict["equal"]), row([*cells, f"{outcome.recovery_seconds:.1f}"])


def _by_trigger(store: ObjectStore, given: argparse.Namespace, machine: str) -> None:
    days = ["PUT a day", "LIST a day", "GET a day", "$ a month"]
    rows = [table(["trigger ms", "checkpoint", "batches a minute", "probes", "p50 ms", "p99 ms", *days])]
    print("\n" + "\n".join(rows), flush=True)
    about = f"{PROBED_LOAD[0]} events a second of {PROBED_LOAD[1]} clients"
    prices = f"Prices: S3 Standard, us-east-1, {PUT_PRICE} $ for 1000 PUT or LIST, {GET_PRICE} $ for 1000 GET; 30 days."
    about = f"Each was measured for {given.seconds:g} s, with {about}. {prices}"
    cases = [(trigger_ms, False) for trigger_ms in given.triggers] + [(trigger_ms, True) for trigger_ms in given.stored]
    for trigger_ms, is_stored in cases:
        rows.append(_measured(store, trigger_ms, is_stored, given.seconds))
        print(rows[-1], flush=True)
        _report(given, "triggers", [machine, "", *rows, "", about])


def _measured(store: ObjectStore, trigger_ms: int, is_stored: bool, seconds: float) -> str:
    root = f"s3://{BUCKET}/trigger-{trigger_ms}-{is_stored}"
    checkpoint = f"{root}/checkpoint" if is_stored else None
    with probing(f"{root}/tables", trigger_ms, seconds, _WARM_UP_SECONDS, checkpoint) as (log, prober):
        access, before, began = AccessLog(store.access_log), len(log.batches), time.monotonic()
        latencies_ms = prober.probe(seconds)
        asked = Requests.of(access.new_lines(), time.monotonic() - began)
    pace = (len(log.batches) - before) / asked.seconds * 60
    days = [f"{asked.a_day(count):,}".replace(",", " ") for count in (asked.puts, asked.lists, asked.gets)]
    probed = len(latencies_ms), *percentiles(latencies_ms)
    return row([trigger_ms, "in the store" if is_stored else "local", pace, *probed, *days, asked.dollars_a_month])


def _report(given: argparse.Namespace, part: str, lines: Sequence[str]) -> None:
    if given.no_report:
        return
    write_part(PAGE, f"<!-- measured: {part} -->", f"<!-- /measured: {part} -->", "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
