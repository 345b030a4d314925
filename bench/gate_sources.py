"""Where the throttles and releases of the gate's benchmark come from, and when a gate could know each of them."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from threading import Thread
from typing import Any, Final, NamedTuple, Protocol

from bench.gate_topic import CLIENT_ID, user_of
from pipeline.tables.audit import local_audit
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable
from schemas.topic_names import USAGE_TOPIC

ONE_BY_ONE: Final = "one by one"
_BOUND, _BOUNDLESS = 1_000.0, 1e12
_POLL_SECONDS: Final = 1.0  # long enough for a job with a short trigger to see an edit


class Source(Protocol):
    """Throttles all clients and releases them. There are several ways of releasing.

    Attributes:
        name: Its name in the table.
        releases: The names of the ways of releasing.
    """

    name: str
    releases: tuple[str, ...]

    def throttle(self, release: str) -> list[str]:
        """Throttle all clients, for a release in that way. Returns the users, one per client."""
        ...

    def release(self, release: str, users: Sequence[str]) -> None:
        """Release them, or make sure that they are released."""
        ...


class Publisher:
    """A child process (`bench.gate_topic publish`) with a transactional producer. No throttle ends by itself."""

    name = "publisher"
    releases: tuple[str, ...] = (ONE_BY_ONE, "at once")

    def __init__(self, child: "subprocess.Popen[str]", clients: int) -> None:
        self._child = child
        self._clients = clients

    def throttle(self, release: str) -> list[str]:
        """Throttle all clients in one transaction."""
        del release
        self._order("throttle", 0, self._clients - 1)
        return list(map(user_of, range(self._clients)))

    def release(self, release: str, users: Sequence[str]) -> None:
        """One transaction per client, at random times; or one for all clients."""
        if release != ONE_BY_ONE:
            self._order("release", 0, self._clients - 1)
            return
        for client in range(len(users)):
            self._order("release", client, client)
            time.sleep(random.uniform(0.02, 0.08))

    def _order(self, action: str, first: int, last: int) -> None:
        orders, answers = self._child.stdin, self._child.stdout
        if orders is None or answers is None:
            sys.exit("the publisher must have pipes")
        orders.write(f"{action} {first} {last}\n")
        orders.flush()
        answers.readline()


class Job:
    """A running `kquota run`. Usage events throttle the clients. They are released at the end, or after a quota edit.

    All clients share one quota. Each round has new users, because the rates of the earlier ones are still high.
    """

    name = "job"
    releases: tuple[str, ...] = ("due, one by one", "due, at once", "by a quota edit")

    def __init__(self, producer: Any, quotas: QuotaTable, clients: int) -> None:
        self._producer = producer
        self._quotas = quotas
        self._clients = clients
        self._rounds = 0
        self._bound = 0.0

    def throttle(self, release: str) -> list[str]:
        """Send one event per client, about 15 to 19 times its quota: it must wait 5 to 9 s; or 9 s for all of them."""
        self._alter(_BOUND)
        users = [f"round-{self._rounds}-{number}" for number in range(self._clients)]
        self._rounds += 1
        now_ms = time.time_ns() // 1_000_000
        for place, user in enumerate(users):
            share = place / len(users) if release == self.releases[0] else 1.0
            event = {
                "event_time_ms": now_ms,
                "user": user,
                "client_id": CLIENT_ID,
                "produced_bytes": int((15 + 4 * share) * _BOUND),
            }
            self._producer.send(USAGE_TOPIC, json.dumps(event).encode())
        self._producer.flush()
        return users

    def release(self, release: str, users: Sequence[str]) -> None:
        """Raise the quota; or do nothing: the job releases them when their throttles end."""
        del users
        if release == self.releases[2]:
            self._alter(_BOUNDLESS)

    def _alter(self, bound: float) -> None:
        if bound != self._bound:
            self._quotas.alter([QuotaChange("<default>", "", {"producer_byte_rate": bound})], local_audit("bench"))
            self._bound = bound
            if bound == _BOUND:
                time.sleep(_POLL_SECONDS)


class LetGo(NamedTuple):
    """When a client could go on.

    Attributes:
        monotonic_ns: That instant.
        by_release: True if a release was readable before the throttle ended by itself.
    """

    monotonic_ns: int
    by_release: bool


class Readable:
    """What a plain reader, a process of its own, has received, by user. Its output is read on a thread.

    Args:
        lines: The output of `bench.gate_topic read`.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._wall_ahead_ns = time.time_ns() - time.monotonic_ns()
        self._released_ns: dict[str, int] = {}
        self._until_ns: dict[str, int] = {}
        Thread(target=self._collect, args=(lines,), daemon=True).start()

    def are_released(self, users: Iterable[str]) -> bool:
        """True if a release of each user was read after its last throttle."""
        return all(user in self._released_ns for user in users)

    def let_go(self, user: str) -> LetGo:
        """When a released client could go on: at its release, or at the end of its lease if that was earlier."""
        released_ns, until_ns = self._released_ns[user], self._until_ns[user]
        return LetGo(min(released_ns, until_ns), released_ns < until_ns)

    def _collect(self, lines: Iterable[str]) -> None:
        for line in lines:
            action, user, until_ms, arrived_ns = line.split()
            if action == "throttle":
                self._released_ns.pop(user, None)
                self._until_ns[user] = int(until_ms) * 1_000_000 - self._wall_ahead_ns
            else:
                self._released_ns[user] = int(arrived_ns)
