"""One try at a webhook, against a real HTTP server: what is sent, and what each answer means."""

import hashlib
import hmac
import socket
from collections.abc import Iterator

import pytest

from pipeline.alerts.receivers import Webhook
from tests.pipeline.alerts.receiving import Inbox, receiving

MESSAGE = {"version": "4", "alerts": [{"labels": {"user": "夜間"}}]}
KEY = b"0123456789abcdef"


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with receiving() as running:
        yield running


def webhook(url: str, key: bytes | None = KEY, timeout_ms: int = 60_000) -> Webhook:
    return Webhook("ops", url, key, timeout_ms, lambda: 1_700_000_000_999)


def test_a_message_is_signed_over_its_timestamp_and_its_body(inbox: Inbox) -> None:
    assert webhook(inbox.url).send(MESSAGE) == ("taken", "200")
    (request,) = inbox.requests
    assert request.message == {"receiver": "ops", **MESSAGE}
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["X-Kquota-Timestamp"] == "1700000000"
    wanted = hmac.new(KEY, b"1700000000." + request.body, hashlib.sha256).hexdigest()
    assert request.headers["X-Kquota-Signature"] == f"sha256={wanted}"


def test_without_a_key_it_is_not_signed(inbox: Inbox) -> None:
    webhook(inbox.url, None).send(MESSAGE)
    assert "X-Kquota-Signature" not in inbox.requests[0].headers


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, "taken"),
        (204, "taken"),
        (400, "never"),
        (401, "later"),
        (404, "later"),
        (408, "later"),
        (413, "never"),
        (422, "never"),
        (429, "later"),
        (500, "later"),
        (503, "later"),
    ],
)
def test_each_status_is_success_another_try_or_the_end(status: int, verdict: str, inbox: Inbox) -> None:
    inbox.answers = [status]
    answer = webhook(inbox.url).send(MESSAGE)
    assert answer.verdict == verdict
    assert answer.text.startswith(str(status))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int, inbox: Inbox) -> None:
    with receiving() as elsewhere:
        inbox.answers, inbox.location = [status], elsewhere.url
        answer = webhook(inbox.url).send(MESSAGE)
        assert (answer.verdict, elsewhere.requests) == ("later", [])
    assert "a redirect, which is not followed" in answer.text


def test_no_answer_in_time_is_another_try(inbox: Inbox) -> None:
    inbox.answers = [0]
    assert webhook(inbox.url, timeout_ms=100).send(MESSAGE) == ("later", "timed out")


def test_a_connection_that_ends_without_an_answer_is_another_try(inbox: Inbox) -> None:
    inbox.answers = [0]
    inbox.go_on.set()
    assert webhook(inbox.url).send(MESSAGE).verdict == "later"


def test_nobody_there_is_another_try() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    answer = webhook(f"http://127.0.0.1:{port}/hook/s3cret").send(MESSAGE)
    assert answer == ("later", "[Errno 111] Connection refused")


def test_what_does_not_speak_http_is_another_try() -> None:
    with receiving() as plain:
        answer = webhook(plain.url.replace("http:", "https:")).send(MESSAGE)
    assert answer.verdict == "later"
    assert "SSL" in answer.text


def test_of_the_address_only_scheme_and_host_are_told(inbox: Inbox) -> None:
    inbox.answers = [500]
    hook = webhook(inbox.url)
    assert "s3cret" not in hook.place + hook.send(MESSAGE).text
    assert hook.place == inbox.url.removesuffix("/hook/s3cret")
