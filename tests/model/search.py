"""The search through all states of the model, breadth first: the shortest way into a state that breaks a property."""

from collections import deque
from typing import NamedTuple

from tests.model.outbox import FIRST, Steps, World, step_of, steps, stored


def broken(world: World) -> str:
    """What is broken, and after a colon the rows that show it; "" if all properties hold."""
    rows = stored(world)
    batches = [commit.batch for commit in world.table if commit.rows]
    newest = [max(before.life for before in world.table[: at + 1]) for at in range(len(world.table))]
    if any(commit.life < life for commit, life in zip(world.table, newest, strict=True)):
        return "a fenced driver has stored rows"
    if rows != tuple(range(len(rows))) or len(set(batches)) < len(batches):
        return f"the outbox has a gap or a repeat: {rows}, of batches {batches}"
    if world.topic != tuple(row for row in rows if row != world.large)[: len(world.topic)]:
        return f"the topic has a gap or a repeat: {world.topic}, the outbox has {rows}"
    if world.is_loud:
        return "a fenced driver has published"
    return ""


def is_empty(world: World) -> bool:
    """Whether no stored record waits."""
    return not world.state and world.topic == tuple(row for row in stored(world) if row != world.large)


_AT_REST = ("down", "ready", "behind")


class Found(NamedTuple):
    """How many states were visited, which property is broken ("": none), and the steps up to there."""

    states: int
    broken: str
    way: tuple[str, ...]


def explore(out: str = "") -> Found:
    """Visit all states, or the first ones up to one that breaks a property.

    Args:
        out: A guard that is left out. What a driver does undisturbed is then one step, too: that adds no state, and
            makes the way shorter to read.
    """
    worlds = list(FIRST)
    index = {world: number for number, world in enumerate(worlds)}
    came: list[tuple[int, str]] = [(-1, "")] * len(worlds)
    before: list[list[int]] = [[] for _ in worlds]
    for number, world in enumerate(worlds):  # grows meanwhile
        if problem := broken(world):
            return Found(len(worlds), problem, _way(came, number))
        for what, after in (*steps(world, out), *(undisturbed(world, out) if out else ())):
            known = index.setdefault(after, len(worlds))
            if known == len(worlds):
                worlds.append(after)
                came.append((number, what))
                before.append([])
            before[known].append(number)
    ends = deque(number for number, world in enumerate(worlds) if is_empty(world))
    good = set(ends)
    while ends:
        reached = [number for number in before[ends.popleft()] if number not in good]
        good.update(reached)
        ends.extend(reached)
    stuck = next((number for number in range(len(worlds)) if number not in good), None)
    if stuck is None:
        return Found(len(worlds), "", ())
    return Found(len(worlds), "a stored record never gets out", _way(came, stuck))


def undisturbed(world: World, out: str) -> Steps:
    """A driver's steps until it rests, as one."""
    for i in range(2):
        done, after = [], world
        while step := next(iter(step_of(after, i, out)), None):
            done.append(step[0])
            after = step[1]
            if after.drivers[i].at in _AT_REST:
                break
        if len(done) > 1 and after.drivers[i].at in _AT_REST:
            is_take_over = done[0] == "starts" and after.drivers[i].at == "ready"
            yield f"{i + 1} {'takes over' if is_take_over else f'{done[0]} and goes on'}", after


def _way(came: list[tuple[int, str]], number: int) -> tuple[str, ...]:
    way: list[str] = []
    while came[number][0] >= 0:
        number, what = came[number]
        way.append(what)
    return tuple(reversed(way))
