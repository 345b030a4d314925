"""The protocol of the outbox as a model: two drivers, their table, Kafka's transactions, and all orders of their steps.

A step is one request with its answer, of a driver or the coordinator. At each of them a process may be killed, an
answer be lost, or a request be late. `out` names the one guard of `tests.model.guards` that is left out.

Not in it: tables and topics that others change, copies of tables, clocks, a marker that expires while a driver runs,
and what happens inside of one commit of a table, or of one broker.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

MOST_ROWS, MOST_STARTS, MOST_FAULTS = 2, 1, 2  # starts: of a driver while another one runs; alone it always may
END: Final = -1  # a late EndTxn; a late TxnOffsetCommit is its marker


class Commit(NamedTuple):
    """A commit to the table: an epoch without rows, or rows. `life`: which commit has raised the driver's epoch."""

    life: int
    epoch: int
    rows: tuple[int, ...] = ()
    batch: int = -1


class Driver(NamedTuple):
    """A process. `at`: its next step; `handle`: how many commits it has seen; `todo`: rows, and the marker after them;
    `holds`: it has the newest producer; `renews`: it takes a new one before its next transaction."""

    at: str = "down"
    epoch: int = 0
    life: int = 0
    handle: int = 0
    seq: int = 0
    batch: int = 0
    holds: bool = False
    renews: bool = False
    mark: int | None = 0
    todo: tuple[tuple[tuple[int, ...], int], ...] = ()


class World(NamedTuple):
    """All there is. `large`: the record the topic never takes; `state` to `by`: the transaction, and the life that
    makes it; `net`: late requests; `taken`: the newest life that has taken over; `is_loud`: one before it was seen."""

    drivers: tuple[Driver, Driver]
    table: tuple[Commit, ...]
    large: int
    faults: int
    starts: int = 0
    state: str = ""
    sent: tuple[int, ...] = ()
    pending: int | None = None
    by: int = 0
    topic: tuple[int, ...] = ()
    marker: int | None = 0
    net: tuple[int, ...] = ()
    taken: int = 0
    is_loud: bool = False


_RUNS: Final = Driver("ready", epoch=1, handle=1, holds=True)
FIRST: Final = [World((_RUNS, Driver()), (Commit(0, 1),), large, faults=int(large >= 0)) for large in (-1, 0, 1)]
Steps = Iterator[tuple[str, World]]


def stored(world: World) -> tuple[int, ...]:
    return tuple(row for commit in world.table for row in commit.rows)


def newest_epoch(world: World) -> int:
    return max(commit.epoch for commit in world.table)


def put(world: World, i: int, driver: Driver, **changes: Any) -> World:
    if driver.at == "ready" and driver.holds:
        changes["taken"] = max(world.taken, driver.life)
    return world._replace(drivers=(driver, world.drivers[1]) if i == 0 else (world.drivers[0], driver), **changes)


def fenced(world: World) -> World:
    """No driver holds the newest producer; an open transaction is aborted, and what is late will be refused."""
    one, other = (driver._replace(holds=False) if driver.holds else driver for driver in world.drivers)
    return world._replace(drivers=(one, other), state="", sent=(), pending=None, net=())


def visible(world: World, records: bool = True, marker: bool = True) -> World:
    """The transaction, or half of it, is visible to a reader of committed records."""
    topic, sent = (world.topic + world.sent, ()) if records else (world.topic, world.sent)
    moves = marker and world.pending is not None
    at, pending = (world.pending, None) if moves else (world.marker, world.pending)
    state, is_loud = "commit" if sent or pending is not None else "", world.is_loud or world.by < world.taken
    return world._replace(topic=topic, sent=sent, marker=at, pending=pending, state=state, is_loud=is_loud)


def steps(world: World, out: str = "") -> Steps:
    return ((what, after) for what, after in _steps(world, out) if after.faults <= MOST_FAULTS)


def _steps(world: World, out: str) -> Steps:
    faulty = world._replace(faults=world.faults + 1)
    for i, driver in enumerate(world.drivers):
        yield from ((f"{i + 1} {what}", after) for what, after in step_of(world, i, out))
        if driver.at != "down":
            yield f"{i + 1} is killed", put(faulty, i, Driver())
    if world.state == "commit" and world.sent:
        yield "the records become visible", visible(world, marker=False)
    if world.state == "commit" and world.pending is not None:
        yield "the marker moves", visible(world, records=False)
    for at, late in enumerate(world.net) if world.state == "open" else ():
        moved = world._replace(net=world.net[:at] + world.net[at + 1 :])
        yield "the late request arrives", visible(moved) if late == END else moved._replace(pending=late)
    if world.state == "open":
        yield "an open transaction is aborted after its time-out", fenced(faulty)
    if not world.state and world.marker is not None and all(driver.at == "down" for driver in world.drivers):
        yield "the marker expires", faulty._replace(marker=None)


def step_of(world: World, i: int, out: str) -> Steps:
    """What a driver may do next; the first is what it does without trouble."""
    d = world.drivers[i]
    if d.at in ("ready", "behind"):
        yield from appends(world, i, d, out)
    if d.at == "behind":
        yield "tries again", put(world, i, d._replace(at={"renew": "look", "anew": "fence"}.get(out, "open")))
    elif world.state == "commit" and d.at in ("open", "fence", "send", "mark", "end", "move"):
        return  # the coordinator lets all wait until it is done
    elif d.todo and d.at != "fence":
        yield from transacts(world, i, d, out)
    elif d.at != "ready":
        yield from takes_over(world, i, d, out)


def takes_over(world: World, i: int, d: Driver, out: str) -> Steps:
    highest, life = max(stored(world), default=-1), len(world.table)
    if d.at == "down":
        if (is_alone := world.drivers[1 - i].at == "down") or world.starts < MOST_STARTS:
            begun = Driver("raise", newest_epoch(world) + 1, seq=highest + 1)
            yield "starts", put(world, i, begun, starts=world.starts + (not is_alone))
    elif d.at == "raise" and newest_epoch(world) >= d.epoch and out != "taken":
        yield "ends: its epoch is taken", put(world, i, Driver())
    elif d.at == "raise":
        raised = d._replace(at="read", life=life, handle=life + 1)
        yield "raises the epoch", put(world, i, raised, table=(*world.table, Commit(life, d.epoch)))
    elif d.at == "read":
        read = d._replace(at="open", seq=d.seq if out == "raise" else highest + 1)
        newest = max(commit.batch for commit in world.table)
        for batch in sorted({newest + 1, max(newest, 0)}, reverse=True):  # Spark may run the newest once more
            yield "reads the outbox", put(world, i, read._replace(batch=batch))
    elif d.at == "look" and newest_epoch(world) > d.epoch and out != "leave":
        yield "ends: another driver has the tables", put(world, i, Driver())
    elif d.at == "look" or (d.at == "open" and out == "fence"):
        found = looked(world, d, out)
        yield "reads the marker", put(world, i, found._replace(at="fence") if out == "fence" else found)
    else:
        at = "look" if d.at == "open" else "send" if d.todo else "ready"
        yield "gets a new producer", put(fenced(world), i, d._replace(at=at, holds=True))


def looked(world: World, d: Driver, out: str) -> Driver:
    """A driver that has read the marker, and which of the stored rows are missing on the topic."""
    after = 0 if out == "end" else max(world.topic, default=-1) + 1
    marker = after if world.marker is None else world.marker
    rows = tuple(row for row in stored(world) if row >= marker) if marker < d.seq and out != "rest" else ()
    todo = ((rows, rows[-1] + 1),) if rows else (((), max(d.seq, marker)),) if world.marker is None else ()
    at = "send" if todo else "ready"
    return d._replace(at=at, seq=max(d.seq, marker), renews=False, mark=world.marker, todo=todo)


def appends(world: World, i: int, d: Driver, out: str) -> Steps:
    seen, skipped = world.table[: d.handle], d._replace(batch=d.batch + 1)
    if seen != world.table and newest_epoch(world) > d.epoch and out not in ("conditional", "compare"):
        yield "ends: another driver has the tables", put(world, i, Driver())
    elif seen != world.table and out != "conditional":
        yield "reads the table", put(world, i, d._replace(handle=len(world.table)))
    elif max(commit.batch for commit in seen) >= d.batch and out != "skip":
        yield "skips a batch", put(world, i, skipped)
    else:
        for last in range(d.seq, MOST_ROWS):
            rows = tuple(range(d.seq, last + 1))
            if max((row for commit in seen for row in commit.rows), default=-1) >= last:
                yield "ends: its numbers are taken", put(world, i, Driver())
                continue
            todo = d.todo if d.at == "behind" and out != "anew" else (*d.todo, (rows, last + 1))
            made = skipped._replace(
                at="send" if d.at == "ready" else d.at, handle=d.handle + 1, seq=last + 1, todo=todo
            )
            if out == "store" and d.at == "ready":
                yield f"publishes {rows} at once", put(world, i, made._replace(handle=d.handle, seq=d.seq))
                continue
            after = world._replace(table=(*world.table, Commit(d.life, d.epoch, rows, d.batch)))
            yield f"stores {rows}", put(after, i, made)
            after = after._replace(faults=world.faults + 1)
            again = skipped._replace(handle=made.handle) if out == "own" else made
            yield f"stores {rows}, hears no answer and asks again", put(after, i, again)
            yield f"stores {rows} and hears no answer", put(after, i, skipped if out == "unknown" else Driver())


def transacts(world: World, i: int, d: Driver, out: str) -> Steps:
    (rows, mark), rest = d.todo[0], d.todo[1:]
    done = d._replace(at="move" if out == "together" and d.at == "end" else "send" if rest else "ready")
    done = done if done.at == "move" else done._replace(mark=mark, todo=rest)
    lost = d._replace(at="behind", renews=False, todo=d.todo if out == "anew" else ())
    world = world._replace(by=d.life) if d.holds else world
    failed = world._replace(faults=world.faults + 1)
    late, late_end = (tuple(sorted((*world.net, request))) for request in (mark, END))
    fits = tuple(row for row in rows if row != world.large)
    if d.renews and d.at == "send" and world.marker not in (d.mark, None) and out != "same":
        yield "gets a new producer, but the marker has moved", put(fenced(world), i, d._replace(at="behind", todo=()))
    elif d.renews and d.at == "send":
        yield "gets a new producer", put(fenced(world), i, d._replace(holds=True, renews=False))
    elif not d.holds:
        yield "is fenced", put(world, i, d._replace(at="behind", renews=False, todo=()))
    elif d.at == "send" and fits != rows:
        parts = tuple(((row,), row + 1) for row in rows) if rows[1:] else (((), mark),)
        large = d._replace(renews=True, todo=parts + rest)
        yield "sends a record that is too large", put(world, i, large, state="open", sent=world.sent + fits)
    elif d.at == "send":
        yield f"sends {rows}", put(world, i, d._replace(at="mark"), state="open", sent=world.sent + rows)
        yield f"sends {rows} and hears no answer", put(failed, i, lost, state="open", sent=world.sent + rows)
    elif d.at == "mark":
        moved = {"state": "open", "pending": None if out == "together" else mark}
        twice = d._replace(at="end", renews=out != "twice")
        yield f"sends the marker {mark}", put(world, i, d._replace(at="end"), **moved)
        yield f"sends the marker {mark} twice", put(failed, i, twice, **moved, net=late)
    elif d.at == "move":
        yield "moves the marker", put(world._replace(marker=mark), i, done)
    elif not world.state:  # a late end has come before
        yield "ends the transaction", put(world, i, done)
    else:
        yield "ends the transaction", put(visible(world), i, done)
        yield "ends the transaction, which takes its time", put(world, i, done, state="commit")
        yield "ends the transaction and hears no answer", put(failed, i, lost, state="commit")
        yield "sends an end that is late", put(failed, i, lost, net=late_end)
        twice = done._replace(renews=done.renews or out != "twice")
        yield "ends the transaction twice", put(visible(failed), i, twice, net=late_end)
