"""All answers about one instant agree: explain, list, status and page, while a job lives and dies.

The job is a `HandJob`: real micro-batches, engine, purgatory and Delta tables, with kills and quota edits between. At
random instants everything is asked, and each number has a name: one that has two values is a contradiction.
"""

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from pipeline.dashboard.reader import Feed, TablesReader
from pipeline.dashboard.views import Answers, Query
from pipeline.failpoints import FAILPOINTS
from pipeline.job.status import job_lock, signs_of
from pipeline.observe.observation import Line
from pipeline.observe.sources import InForce, lines_of_job
from pipeline.settings.model import load_settings
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.rates import broker_hold_text
from pipeline.tables.throttles import Held
from quota.entity import QUOTA_TYPES
from schemas.throttle_record import Target
from tests.faults.hand_job import Load
from tests.faults.rig import edit_team
from tests.pipeline.cli.running import kquota

SEEDS: Final = range(8)
INSTANTS: Final = 25
FEW: Final = 3
_MINUTE_MS: Final = 60_000
_ASKED_CLIENTS: Final = 3

Fact = tuple[tuple[Any, ...], Any]
"""The name of a number, and its value."""


class Life:
    """A job that lives and dies, the page beside it, and what both say."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.load = Load(folder, seed)
        self.job = self.load.job
        self.random = random.Random(seed)
        self._brokers_random, self._team_random = random.Random(seed), random.Random(seed)
        monkeypatch.setattr("pipeline.clock.time.time_ns", lambda: self.job.clock.wall_ms * 1_000_000)
        self._config = folder / "kquota.toml"
        self._config.write_text(_toml(self.job.settings, folder))
        self._settings = load_settings(self._config)
        self.reader = TablesReader(
            self._settings, signs_of(self._settings.run_dir, self._settings.job, self._settings.tables.root)
        )
        self.feed = Feed(self.reader)
        self.answers = Answers(self.reader, self.feed, self._settings)
        self._lock = ExitStack()
        self.comes_up()

    def comes_up(self) -> None:
        self._lock.enter_context(job_lock(self._settings.run_dir, self._settings.job, self._settings.tables.root))

    def goes_on(self) -> bool:
        """Let time pass, mostly with usage, sometimes with an edit or a kill; returns whether the job lives then."""
        for _ in range(self.random.randrange(2, 6)):
            if self.random.random() < 0.15:
                self.load.edit(self.random.choice((0.5, 1.0, 2.0)))
            if self._team_random.random() < 0.2:
                edit_team(self.job.tenant_table, self._team_random)
            self._brokers_hold()
            self.load.step(self.random.choice((0, 0, 0, 2_000)))
            self.reader.look(self.job.clock.wall_ms)
        if self.random.random() < 0.3:
            points = [name for name in FAILPOINTS if not name.startswith(("start.", "dead_letters."))]
            point = self.random.choice(points)
            self.load.run_until_killed_at(point)
            self._lock.close()
            if self.random.random() < 0.5:
                return False
            self.lives_again()
        self.job.clock.advance(self.random.randrange(0, 900))
        return True

    def _brokers_hold(self) -> None:
        """The brokers themselves make some clients wait, offenders and others."""
        for _ in range(self._brokers_random.randrange(3)):
            event = {
                "event_time_ms": self.job.clock.wall_ms,
                "user": self._brokers_random.choice(("offender-1", "offender-2", "stock")),
                "client_id": self._brokers_random.choice(("etl", "app")),
                "broker_id": self._brokers_random.choice("12"),
                "broker_throttle_ms": self._brokers_random.randrange(4_000),
            }
            self.job.send(json.dumps(event).encode())

    def lives_again(self) -> None:
        self.job.start()
        self.comes_up()
        self.load.step()

    def close(self) -> None:
        self._lock.close()

    def ask(self, *words: str) -> Any:
        """What a command prints as JSON; [] if it finds nothing."""
        answer = kquota(*words, "-o", "json", "--config", str(self._config))
        assert answer.exit_code in {0, 1, 3}, answer.stderr
        return json.loads(answer.stdout or "[]")

    def page(self, path: str, **query: Any) -> Any:
        return self.answers.by_path()[f"/api/v1/{path}"](Query(**query))

    def facts(self) -> Iterator[tuple[str, Fact]]:
        """Every number that more than one answer may give, with who gives it."""
        self.feed.state = self.reader.look(self.job.clock.wall_ms)
        every = self.ask("throttles", "list")
        listed = [row for row in every if row["decision_id"] is not None]
        held = Held(listed)
        known = sorted((row["user"], row["client_id"]) for row in self.page("clients", limit=1_000)["clients"])
        clients = [client for client in known if held.by(*client)]
        free = [client for client in known if not held.by(*client)]
        only_by_brokers = [(row["user"], row["client_id"]) for row in every if row["decision_id"] is None]
        users = sorted({(user, None) for user, client_id in held.targets if client_id is None})
        asked = [*self.random.sample(clients, min(len(clients), _ASKED_CLIENTS)), *users[:1], *free[:1]]
        asked += [client for client in only_by_brokers[:2] if client not in asked]
        yield from (("list", fact) for fact in _of_list(listed))
        yield from (("status", fact) for fact in _of_status(self.ask("status")))
        yield from (("page now", fact) for fact in _of_summary(self.page("summary")))
        pipeline = self.page("pipeline")
        yield "page pipeline", (("holds",), pipeline["purgatory"]["held"])
        yield "page pipeline", (("next end",), pipeline["purgatory"]["next_end_ms"])
        yield "list", (("clients that are held",), len(clients))
        throttled = sum(row["throttled"] for row in self.page("clients")["clients"])
        yield "page clients", (("clients that are held",), throttled)
        yield from (("page quotas", fact) for fact in _of_quotas(self.page("quotas", limit=1_000)))
        now_ms = self.job.clock.wall_ms
        quotas = QuotaSource(self.job.quota_table).pin()
        in_force = InForce(quotas, root=self._settings.tables.root, min_hold_ms=self._settings.purgatory.min_hold_ms)
        yield from (("observe", fact) for fact in _of_lines(lines_of_job(in_force, now_ms) or []))
        for client in asked:
            yield "list", (("until", client), held.until_ms(*client))
            by_brokers = [row["held_by_brokers"] for row in every if (row["user"], row["client_id"]) == client]
            if by_brokers or not held.by(*client):  # else it is listed by its user
                yield "list", (("by brokers", client), next(iter(by_brokers), None))
            yield from self._of_client(client, bool(held.by(*client)))

    def _of_client(self, client: tuple[str, str | None], is_held: bool) -> Iterator[tuple[str, Fact]]:
        user, client_id = client
        named = "*" if client_id is None else client_id
        found = self.ask("throttles", "explain", user, named)
        document = found[0] if found else None
        if document is not None:
            yield from (("explain", fact) for fact in _of_explained(document, client))
            text = kquota("throttles", "explain", user, named, "--config", str(self._config)).stdout.splitlines()
            told = self.page("explain", user=user, client_id=client_id)
            lines = [line.strip() for line in text]
            now = next(place for place, line in enumerate(lines) if line.startswith("now: "))
            yield "explain", (("now line", client), lines[now])
            yield "page explain", (("now line", client), told["now"])
            yield "page explain", (("decision told", client), told["decision_id"])
            records = len(told["published"])
            yield "explain", (("records told", client), lines[now - records : now])
            yield "page explain", (("records told", client), told["published"])
        if client_id is not None:
            shown = self.page("client", user=user, client_id=client_id)
            yield from (("page client", fact) for fact in _of_client_view(shown, client, is_held))


def _of_list(rows: list[dict[str, Any]]) -> Iterator[Fact]:
    yield ("holds",), len(rows)
    yield ("held",), Held(rows).counts
    yield ("next end",), min((row["throttled_until_ms"] for row in rows), default=None)
    yield from (fact for row in rows for fact in _of_record(row))
    for row in rows:
        sensor = row["quota_type"], row["user"], row["client_id"] or ""
        yield ("until of the sensor", *sensor), row["throttled_until_ms"]


def _of_lines(lines: list[Line]) -> Iterator[Fact]:
    """What `observe` says."""
    for line in lines:
        if line.sensor.level:
            who = QUOTA_TYPES[line.sensor.quota_type], line.sensor.user, line.sensor.client_id, line.sensor.mode
            yield ("O", *who), line.observed
            yield ("T of the sensor", *who), line.sensor.bound
            yield ("used", *who), line.used
            if line.sensor.user and line.sensor.client_id:
                held_seconds = round((line.broker_held_share or 0) * 60)
                yield ("by brokers", line.sensor[1:3]), broker_hold_text(held_seconds)
            if line.held_until_ms is not None:
                yield ("until of the sensor", *who[:3]), line.held_until_ms


def _of_record(row: dict[str, Any]) -> Iterator[Fact]:
    target = Target.of(row)
    yield ("until", target), row["throttled_until_ms"]
    yield ("decision", target), row["decision_id"]
    for name in ("quota_type", "observed", "bound", "cause", "quota_version"):
        if name in row:
            yield (f"{name} of the record", target), row[name]


def _of_status(found: dict[str, Any]) -> Iterator[Fact]:
    yield ("held",), (found["held_users"], found["held_clients"])
    yield ("batch",), found["last_batch_id"]
    yield from _of_health(found["health"])
    yield ("quotas",), found["quotas"]
    yield ("newest quotas",), found["newest_quotas"]
    yield ("mode",), found["mode"]


def _of_health(health: dict[str, Any]) -> Iterator[Fact]:
    for name in ("last_batch_age_ms", "lag_ms", "ahead_ms", "process"):
        yield (name,), health[name]


def _of_summary(found: dict[str, Any]) -> Iterator[Fact]:
    quotas = found["quotas"]
    yield from _of_health(found["health"])
    yield ("holds",), found["totals"]["throttled"]
    yield ("batch",), found["batch_id"]
    yield ("quotas",), quotas["version"]
    yield ("newest quotas",), quotas["newest_version"]
    yield ("mode",), quotas["mode"]
    yield ("rates at",), found["rates_at_ms"]
    yield ("clients with usage",), found["totals"]["active_clients"]
    for name in ("produced_bytes_per_second", "fetched_bytes_per_second"):
        yield (name,), found["totals"][name]
    if found["verdict"]["kind"] == "held":
        counted = {word: int(n) for n, word in re.findall(r"(\d+) (user|client)", found["verdict"]["text"])}
        yield ("held",), (counted.get("user", 0), counted.get("client", 0))
    for row in found["throttled"]:
        yield from _of_record(row)
        yield ("since", Target.of(row)), row["since_ms"]
    for row in found["talkers"]:
        sensor = row["quota_type"], row["sensor_user"], row["sensor_client_id"], row["mode"]
        yield ("O", *sensor), row["observed"]
        yield ("T of the sensor", *sensor), row["bound"]
        yield ("used", *sensor), row["used"]
        yield ("tenant", *sensor), row["tenant"]
    for row in found["tenants"]:
        for one in row["shown"]:
            sensor = row["quota_type"], one["sensor_user"], one["sensor_client_id"], row["mode"]
            yield ("O", *sensor), one["observed"]
            yield ("T of the sensor", *sensor), one["bound"]
            yield ("tenant", *sensor), row["tenant"]


def _of_quotas(found: dict[str, Any]) -> Iterator[Fact]:
    yield ("newest quotas",), found["version"]
    for row in found["rows"]:
        for name, one in row["bounds"].items():
            yield ("T", row["user"], row["client_id"], name), one["bound"]


def _of_explained(found: dict[str, Any], client: tuple[str, str | None]) -> Iterator[Fact]:
    events = found["events"]
    yield ("by brokers", client), found["held_by_brokers"]
    yield ("decision told", client), found["decision"]["decision_id"]
    if found["held_until_ms"] is not None:
        yield ("until", client), found["held_until_ms"]
        yield from _of_record(events[-1])
    elif found["free_since_ms"] is not None:
        yield ("not held since", client), found["free_since_ms"]
    if events:
        newest = events[-1]
        yield ("newest record", client), newest["throttled_until_ms"] - newest["throttle_time_ms"]


def _of_client_view(found: dict[str, Any], client: tuple[str, str | None], is_held: bool) -> Iterator[Fact]:
    for row in found["throttled"]:
        yield from _of_record(row)
    yield ("by brokers", client), found["held_by_brokers"]
    yield ("until", client), max((row["throttled_until_ms"] for row in found["throttled"]), default=None)
    targets = {(band["client_id"], band["client_id"] is None and band["quota_type"]) for band in found["bands"]}
    if len(targets) == 1:  # of several, explain tells the newest
        yield ("until" if is_held else "not held since", client), found["bands"][-1]["end_ms"]
        for row in found["throttled"]:
            yield ("since", Target.of(row)), found["bands"][-1]["start_ms"]
    if found["records"]:
        yield ("newest record", client), found["records"][0]["at_ms"]
    for one in found["effective"]:
        if one["observed"]:
            sensor = one["quota_type"], one["sensor_user"], one["sensor_client_id"], one["mode"]
            yield ("O", *sensor), one["observed"]
            yield ("T of the sensor", *sensor), one["bound"]
            yield ("tenant", *sensor), one["tenant"]


def _toml(settings: Any, folder: Path) -> str:
    tops = {"job": settings.job, "cluster": settings.cluster, "run_dir": str(folder / "run")}
    lines = [f"{name} = {json.dumps(value)}" for name, value in tops.items()]
    for branch, names in {
        "tables": ("root",),
        "engine": ("num_samples", "sample_window_ms"),
        "stream": ("max_decision_age_ms", "trigger_ms"),
        "purgatory": ("client_lag_ms", "min_hold_ms"),
    }.items():
        values = getattr(settings, branch).model_dump(mode="json")
        lines += [f"[{branch}]", *(f"{name} = {json.dumps(values[name])}" for name in names)]
    return "\n".join(lines) + "\n"


def contradictions(life: Life) -> tuple[list[str], int, int]:
    """Names with several values, with who says what; how many names several answers gave; and who is held."""
    said: defaultdict[tuple[Any, ...], dict[str, Any]] = defaultdict(dict)
    wrong = []
    for who, (name, value) in life.facts():
        if who in said[name] and said[name][who] != value:
            wrong.append(f"{name}: {who} says {said[name][who]} and {value}")
        said[name][who] = value
    for name, values in said.items():
        first = next(iter(values.values()))
        if any(value != first for value in values.values()):
            wrong.append(f"{name}: {values}")
    return wrong, sum(len(values) > 1 for values in said.values()), said[("holds",)]["list"]


def live_and_ask(life: Life, instants: int) -> None:
    shared = held = 0
    try:
        for number in range(instants):
            is_alive = life.goes_on()
            wrong, names, clients = contradictions(life)
            assert wrong == [], f"instant {number} at {life.job.clock.wall_ms}, the job lives: {is_alive}"
            shared, held = shared + names, held + clients
            if not is_alive:
                life.lives_again()
    finally:
        life.close()
    assert shared > 20 * instants, "several answers gave the same numbers"
    assert held > instants, "clients were held"


def test_no_answer_contradicts_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live_and_ask(Life(tmp_path, monkeypatch, seed=100), FEW)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_no_answers_contradict_at_random_instants(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live_and_ask(Life(tmp_path, monkeypatch, seed), INSTANTS)
