"""The decision against a naive model that keeps the whole past of each key and looks at all of it every time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipeline.alerts.judging import Book, Change, Facts, Finding, Words, decide
from pipeline.settings.model import AlertsSettings

RULES = AlertsSettings.model_construct(resolve_after_ms=60, repeat_ms=200)
PENDING_MS = {"Slow": 30, "Quick": 0}
KEYS = [(name, thing) for name in PENDING_MS for thing in ("a", "b")]
SEEN = st.sampled_from(["so", "so", "nearly", "not", "unknown"])


@dataclass
class Past:
    """All that was ever seen of a key since its last alert ended: instants, each with so, nearly, not or unknown."""

    seen: list[tuple[int, str]] = field(default_factory=list)
    told: list[int] = field(default_factory=list)

    def _since(self, words: set[str], neutral: set[str]) -> int | None:
        """The first of the instants at the end that are all of these words; those that say nothing are passed over."""
        since = None
        for at_ms, word in reversed(self.seen):
            if word in neutral:
                continue
            if word not in words:
                break
            since = at_ms
        return since

    def step(self, now_ms: int, word: str, pending_ms: int) -> tuple[str, int, int | None] | None:
        """What is to be told now: status, start and end; None = nothing."""
        self.seen.append((now_ms, word))
        if not self.told:
            since = self._since({"so"}, {"unknown"})
            if word != "so" or since is None or now_ms - since < pending_ms:
                return None
            self.told.append(now_ms)
            self.began = since
            return "firing", since, None
        gone = self._since({"not"}, {"unknown"})
        if gone is not None and word != "unknown" and now_ms - gone >= RULES.resolve_after_ms:
            began = self.began
            self.seen, self.told = [], []
            return "resolved", began, gone
        if gone is None and now_ms - self.told[-1] >= RULES.repeat_ms:
            self.told.append(now_ms)
            return "firing", self.began, None
        return None


def words_of(thing: str, now_ms: int) -> Callable[[], Words]:
    return lambda: Words({"thing": thing, "begins": str(now_ms)}, {"told": str(now_ms)})


def is_found(key: tuple[str, ...], findings: list[Finding]) -> bool:
    return any(finding.key == key for finding in findings)


class DecisionAgainstThePast(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.book: Book = {}
        self.pasts = {key: Past() for key in KEYS}
        self.firing: set[tuple[str, ...]] = set()
        self.changes: list[Change] = []
        self.labels: dict[tuple[str, ...], dict[str, str]] = {}

    @rule(step_ms=st.integers(0, 45), slow=SEEN, quick=SEEN, known=st.booleans())
    def look(self, step_ms: int, slow: str, quick: str, known: bool) -> None:
        # What is unknown is so for all things of an alert; without `known` the two things differ.
        words = {("Slow", "a"): slow, ("Quick", "a"): quick}
        for name, word in (("Slow", slow), ("Quick", quick)):
            words[name, "b"] = word if known or word == "unknown" else "not"
        self.now_ms += step_ms
        findings = [
            Finding(key, word == "so", words_of(key[1], self.now_ms), PENDING_MS[key[0]])
            for key, word in words.items()
            if word in {"so", "nearly"}
        ]
        unknown = frozenset(key[0] for key, word in words.items() if word == "unknown")
        self.book, self.changes = decide(self.book, Facts(findings, unknown), self.now_ms, RULES)
        expected: dict[Any, Any] = {
            key: told
            for key, word in words.items()
            if (told := self.pasts[key].step(self.now_ms, word, PENDING_MS[key[0]])) is not None
        }
        assert {one.key: (one.status, one.watched.since_ms, one.watched.gone_ms) for one in self.changes} == expected
        assert len(self.changes) == len(expected)
        for change in self.changes:
            if change.key not in self.firing:
                self.labels[change.key] = {"thing": change.key[1], "begins": str(self.now_ms)}
            assert change.watched.labels == self.labels[change.key], "an alert keeps its labels"
            if change.status == "firing" and is_found(change.key, findings):
                assert change.watched.annotations == {"told": str(self.now_ms)}
            assert change.status == "firing" or change.key in self.firing, "no end without a begin"
            (self.firing.add if change.status == "firing" else self.firing.discard)(change.key)

    @invariant()
    def what_fires_is_remembered(self) -> None:
        assert {key for key, watched in self.book.items() if watched.is_firing} == self.firing


TestDecision = DecisionAgainstThePast.TestCase
TestDecision.settings = settings(max_examples=150, stateful_step_count=40)
