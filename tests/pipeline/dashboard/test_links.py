"""Links of application teams: what opens what, for how long, and that nothing else opens anything."""

import random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dashboard.links import PATHS, SHORTEST_TOKEN, About, forbidden, link_key, link_mistake, link_token
from tests.pipeline.cli.running import kquota

TOKEN = "of this test, and long enough".replace(" ", "-")
OTHER = "of another one, and long enough".replace(" ", "-")
KEY, OTHER_KEY = (link_key(token) or b"" for token in (TOKEN, OTHER))
NOW_MS, END_MS = 1_700_000_000_000, 1_700_000_600_000
ALICE = About(None, "alice", "etl")
SIGNS = "0123456789abcdef."


def altered(token: str, chance: random.Random) -> tuple[bytes, About, str]:
    """A key, a subject and a token of which something is not what was signed."""
    place, bit, sign = chance.randrange(len(token)), 1 << chance.randrange(7), chance.choice(SIGNS)
    end, _, signature = token.partition(".")
    flipped = f"{token[:place]}{chr(ord(token[place]) ^ bit)}{token[place + 1 :]}"
    later = f"{int(end) + chance.randrange(1, 10**9)}.{signature}"
    written = [
        f"0{token}",
        f"+{token}",
        f" {token}",
        f"{end}.{signature.upper()}",
        f"{end}.{signature[::-1]}",
        signature,
    ]
    tokens = [flipped, token[:place], f"{token}{sign}", later, chance.choice(written)]
    subjects = [
        ALICE._replace(user=f"alice{sign}"),
        ALICE._replace(client_id=chance.choice([None, "", "etl2", "ETL", "etl "])),
        ALICE._replace(cluster=chance.choice(["", "prod", "dev"])),
    ]
    cases = [(KEY, ALICE, one) for one in tokens] + [(KEY, one, token) for one in subjects]
    return chance.choice([*cases, (OTHER_KEY, ALICE, token)])


def test_ten_thousand_altered_tokens_are_refused() -> None:
    token, chance = link_token(KEY, ALICE, END_MS), random.Random(7)
    assert link_mistake(KEY, ALICE, token, NOW_MS) is None
    for _ in range(10_000):
        key, about, given_token = altered(token, chance)
        refused = link_mistake(key, about, given_token, NOW_MS)
        assert refused is not None, (about, given_token)
        assert refused[0] == "this link is not valid"


@given(st.text(), st.text())
def test_no_text_is_a_token(text: str, user: str) -> None:
    assert link_mistake(KEY, About(None, user, None), text, NOW_MS) is not None


@given(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))
def test_no_two_subjects_share_a_token(user: str, client_id: str, other_user: str, other_id: str) -> None:
    first, second = About(None, user, client_id), About(None, other_user, other_id)
    assert (link_token(KEY, first, END_MS) == link_token(KEY, second, END_MS)) is (first == second)


@pytest.mark.parametrize(("now_ms", "opens"), [(0, True), (END_MS - 1, True), (END_MS, False), (END_MS + 1, False)])
def test_a_link_works_until_its_end_exclusive(now_ms: int, opens: bool) -> None:
    refused = link_mistake(KEY, ALICE, link_token(KEY, ALICE, END_MS), now_ms)
    assert refused == (
        None if opens else ("this link ended at 2023-11-14 22:23:20 UTC", "ask those who run kquota for a new link")
    )


def test_an_expired_token_with_a_later_end_is_not_valid() -> None:
    token = link_token(KEY, ALICE, NOW_MS - 1).replace(str(NOW_MS - 1), str(NOW_MS + 1))
    assert link_mistake(KEY, ALICE, token, NOW_MS) == (
        "this link is not valid",
        "ask those who run kquota for a new link",
    )


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def note(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("pipeline.dashboard.links.hmac.compare_digest", note)
    token = link_token(KEY, ALICE, END_MS)
    for text in (token, f"{token[:-1]}x", ""):
        link_mistake(KEY, ALICE, text, NOW_MS)
    assert [one for one, _ in compared] == [token.encode(), f"{token[:-1]}x".encode(), b""]


@pytest.mark.parametrize("token", [None, "", "secret", "x" * (SHORTEST_TOKEN - 1)])
def test_a_token_that_can_be_guessed_signs_nothing(token: str | None) -> None:
    assert link_key(token) is None
    assert link_mistake(None, ALICE, link_token(b"", ALICE, END_MS), NOW_MS) is not None
    assert link_key("x" * SHORTEST_TOKEN) is not None


@pytest.mark.parametrize(
    "path", ["/", "/client", "/api/v1/summary", "/metrics", "/static/app.js", "/healthz", "/me/", "/me.csv"]
)
@pytest.mark.parametrize("place", ["query", "header"])
def test_a_links_token_is_forbidden_on_every_other_path(path: str, place: str) -> None:
    token = link_token(KEY, ALICE, END_MS).encode()
    query = b"user=alice&token=" + token if place == "query" else b""
    headers = [(b"authorization", b"Bearer " + token)] if place == "header" else []
    scope = {"path": path, "query_string": query, "headers": headers}
    assert forbidden(scope) == ("this link opens /me, /me.txt, /me.json and nothing else", "open one of these with it")
    assert forbidden({**scope, "query_string": b"token=secret", "headers": []}) is None
    assert [forbidden({**scope, "path": own}) for own in PATHS] == [None, None, None]


@pytest.fixture
def link_words(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setenv("KQUOTA_DASHBOARD_TOKEN", TOKEN)
    monkeypatch.setattr("pipeline.cli.services.wall_ms", lambda: NOW_MS)
    return "dashboard", "link", "--user", "alice"


def about_in(address: str) -> tuple[About, str, Any]:
    parts = urlsplit(address.strip())
    found = {name: value for name, (value,) in parse_qs(parts.query, keep_blank_values=True).items()}
    return About(found.get("cluster"), found["user"], found.get("client_id")), found["token"], parts


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ((), About(None, "alice", None)),
        (("--client-id", "etl"), ALICE),
        (("--client-id", ""), About(None, "alice", "")),
        (("--client-id", "a&b=ü"), About(None, "alice", "a&b=ü")),
        (("--cluster", "dev"), About("dev", "alice", None)),
    ],
)
def test_the_command_prints_a_link_that_opens(
    link_words: tuple[str, ...], options: tuple[str, ...], about: About
) -> None:
    answer = kquota(*link_words, *options, "--days", "3")
    found, token, parts = about_in(answer.stdout)
    assert (answer.exit_code, found, parts.path, parts.netloc) == (0, about, "/me", "127.0.0.1:8788")
    end_ms = NOW_MS + 3 * 86_400_000
    assert [link_mistake(KEY, about, token, at_ms) is None for at_ms in (end_ms - 1, end_ms)] == [True, False]
    assert "it works until 2023-11-17T22:13:20 UTC" in answer.stderr


@pytest.mark.parametrize(
    ("token", "what"), [(None, "the dashboard has no token"), ("secret", "the dashboard's token is too short")]
)
def test_without_a_token_to_sign_with_the_command_says_how_to_get_one(
    token: str | None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KQUOTA_DASHBOARD_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("KQUOTA_DASHBOARD_TOKEN", token)
    answer = kquota("dashboard", "link", "--user", "alice")
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"kquota: {what}, so no link can be signed. Fix: give link and dashboard the same")
