"""Tokens: fetched once, renewed in time; every refusal is one line without the secret."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cluster.sign_in import TokenProvider, TokenRefused, TokenSource
from tests.forking import in_a_child
from tests.pipeline.cluster.token_endpoint import TokenEndpoint, token_endpoint

SECRET = "k1-s3cret"  # noqa: S105 - of the test's own endpoint
NOW = 1_700_000_000.0


def unsigned(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{payload}.sig"


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    issued = iter(range(100))
    with token_endpoint(
        {"meter": SECRET}, lambda client: unsigned(sub=client, exp=NOW + 100, n=next(issued))
    ) as running:
        yield running


def source(endpoint: TokenEndpoint, secret: str = SECRET, scope: str = "") -> TokenSource:
    return TokenSource(endpoint.url, "meter", secret, scope, {"logicalCluster": "lkc-1"})


def test_a_token_is_fetched_once_and_again_after_four_fifths_of_its_life(endpoint: TokenEndpoint) -> None:
    clock = [NOW]
    provider = TokenProvider(source(endpoint, scope="kafka read"), lambda: clock[0])

    first = provider.token()
    clock[0] = NOW + 79.9
    assert provider.token() == first
    clock[0] = NOW + 80
    assert provider.token() != first

    form = {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
    assert endpoint.forms == [form, form]
    assert provider.extensions() == {"logicalCluster": "lkc-1"}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_gets_a_token_though_its_parent_was_fetching_one(endpoint: TokenEndpoint) -> None:
    endpoint.answer = (200, b'{"access_token": "opaque", "expires_in": 10}')
    provider = TokenProvider(source(endpoint))
    with provider._lock:
        assert in_a_child(provider.token) == "opaque"


def test_without_a_claim_the_answer_says_how_long_a_token_is_valid(endpoint: TokenEndpoint) -> None:
    endpoint.answer = (200, b'{"access_token": "opaque", "expires_in": 10}')
    clock = [NOW]
    provider = TokenProvider(source(endpoint), lambda: clock[0])
    for clock[0], asked in ((NOW, 1), (NOW + 7.9, 1), (NOW + 8, 2)):
        assert provider.token() == "opaque"
        assert len(endpoint.forms) == asked


def test_a_token_may_be_a_file_that_is_read_again_when_it_has_expired(tmp_path: Path) -> None:
    file = tmp_path / "token file"
    clock = [NOW]
    file.write_text(unsigned(exp=NOW + 100, n=1) + "\n")
    provider = TokenProvider(TokenSource(file.as_uri()), lambda: clock[0])
    first = provider.token()
    assert first == unsigned(exp=NOW + 100, n=1)
    file.write_text(unsigned(exp=NOW + 200, n=2))
    assert provider.token() == first
    clock[0] = NOW + 90
    assert provider.token() == unsigned(exp=NOW + 200, n=2)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((401, b'{"error": "invalid_client"}'), r"answers 401 Unauthorized \(invalid_client\)"),
        ((400, b'{"error": "invalid_scope", "error_description": "no such"}'), r"\(invalid_scope: no such\)"),
        ((302, b""), r"answers 302 Found"),
        ((500, b"<html>"), r"answers 500 Internal Server Error"),
        ((200, b"<html>"), r"does not answer with JSON"),
        ((200, b'{"token": "x"}'), r"answers without 'access_token'"),
        ((200, b"[]"), r"answers without 'access_token'"),
    ],
)
def test_what_an_endpoint_refuses_is_reported_with_its_address(
    endpoint: TokenEndpoint, answer: tuple[int, bytes], told: str
) -> None:
    endpoint.answer = answer
    with pytest.raises(TokenRefused, match=told) as refused:
        TokenProvider(source(endpoint)).token()
    assert refused.value.exit_code == 6
    assert endpoint.url in str(refused.value)
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_wrong_secret_is_refused_and_never_printed(endpoint: TokenEndpoint) -> None:
    wrong = source(endpoint, secret="wr0ng")  # noqa: S106 - that is the point
    with pytest.raises(TokenRefused, match="invalid_client") as refused:
        TokenProvider(wrong).token()
    assert "wr0ng" not in str(refused.value) + repr(wrong)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/token", "file:///nowhere/token"])
def test_an_endpoint_that_does_not_exist_is_reported(url: str) -> None:
    with pytest.raises(TokenRefused, match=r"does not answer: .*refused|cannot be read"):
        TokenProvider(TokenSource(url)).token()
