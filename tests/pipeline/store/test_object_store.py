"""A store: one set of settings for delta-rs and Hadoop, what stores answer, and the probe of a real one."""

from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from pipeline.cli.options import Source
from pipeline.errors import Refused, Unreachable
from pipeline.settings.model import Settings, StoreSettings, TablesSettings
from pipeline.tables.object_store import (
    StoreObjects,
    delta_rs_options,
    hadoop_settings,
    reach_with,
    refuse_unfit,
    scheme_of,
    store_error,
)
from pipeline.tables.port import is_local, table_uri
from tests.object_store import BUCKET, SECRET, ObjectStore

HIDDEN = "not-to-be-seen"
STORE = StoreSettings(
    endpoint="http://store:9000",
    region="eu-north-1",
    access_key_id=SecretStr("key"),
    secret_access_key=SecretStr(HIDDEN),
    session_token=SecretStr("token"),
)


@pytest.fixture(autouse=True)
def _nothing_of_aws_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def options_of(store: StoreSettings, address: str = "s3://bucket/tables") -> dict[str, str] | None:
    reach_with(store, address)
    return delta_rs_options(address)


def test_delta_rs_gets_what_the_settings_say() -> None:
    assert options_of(STORE) == {
        "aws_endpoint": "http://store:9000",
        "aws_allow_http": "true",
        "aws_region": "eu-north-1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": HIDDEN,
        "aws_session_token": "token",
    }


def test_hadoop_gets_the_same() -> None:
    assert hadoop_settings(STORE, {}) == {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
        "spark.hadoop.fs.s3a.endpoint": "http://store:9000",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-north-1",
        "spark.hadoop.fs.s3a.access.key": "key",
        "spark.hadoop.fs.s3a.secret.key": HIDDEN,
        "spark.hadoop.fs.s3a.session.token": "token",
    }


@pytest.mark.parametrize(
    ("address", "scheme"), [("s3://b/t", "s3"), ("S3A://b", "s3a"), ("gs://b", "gs"), (".kquota", ""), ("/a:b", "")]
)
def test_the_scheme_of_an_address(address: str, scheme: str) -> None:
    assert scheme_of(address) == scheme
    assert is_local(address) is (scheme == "")


def test_a_bucket_is_reached_with_its_settings_and_nothing_else_is() -> None:
    reach_with(STORE, "s3://known/tables/", ".kquota/checkpoint")
    assert delta_rs_options(table_uri("s3://known/tables/", "usage")) == options_of(STORE)
    assert delta_rs_options("s3://known") == options_of(STORE)
    for address in ("s3://known-too/tables", "gs://known/tables", table_uri(".kquota/tables", "usage")):
        assert delta_rs_options(address) is None, address


def test_no_secret_is_printed() -> None:
    settings = Settings(store=STORE, tables=TablesSettings(root="s3://bucket/tables"))
    for text in (repr(settings), str(settings), repr(settings.tables.root), settings.model_dump_json()):
        assert HIDDEN not in text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"endpoint": "store:9000"}, "'store.endpoint' store:9000 does not begin with http:// or https://"),
        ({"access_key_id": "key"}, "only one of .store.access_key_id. and"),
    ],
)
def test_a_store_that_can_not_be_meant_is_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StoreSettings.model_validate(values)


def test_without_settings_the_environment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of(StoreSettings()) is None
    found = hadoop_settings(StoreSettings(), {"AWS_ENDPOINT_URL": "http://a", "AWS_DEFAULT_REGION": "us-west-2"})
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://a"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "us-west-2"
    assert not [key for key in found if key.endswith((".access.key", ".secret.key"))]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    assert options_of(StoreSettings()) == {"aws_endpoint": "http://store:9000", "aws_allow_http": "true"}


def test_other_stores_get_their_own_options_and_none_of_amazons() -> None:
    store = StoreSettings(region="eu-north-1", options={"azure_storage_account_key": SecretStr(HIDDEN)})
    assert options_of(store, "abfss://c@account.dfs.core.windows.net/tables") == {"azure_storage_account_key": HIDDEN}


def test_variables_set_the_store_that_a_command_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_STORE__SECRET_ACCESS_KEY", HIDDEN)
    monkeypatch.setenv("KQUOTA_STORE__ACCESS_KEY_ID", "key")
    monkeypatch.setenv("KQUOTA_STORE__OPTIONS", '{"aws_checksum_algorithm": "sha256"}')
    monkeypatch.setenv("KQUOTA_TABLES__ROOT", "s3://of-variables/tables")
    options = delta_rs_options(Source().settings().tables.root) or {}
    assert (options["aws_secret_access_key"], options["aws_checksum_algorithm"]) == (HIDDEN, "sha256")


ANSWER = "Error performing PUT http://store:9000/b/t/1 in 1ms - Server returned non-2xx status code: {status}: {body}"
XML = "<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"


def told(code: str, message: str = "", more: str = "", status: str = "403 Forbidden") -> str:
    body = XML.format(code=code, message=message, more=more)
    return str(store_error("s3://b/t", "write under", OSError(ANSWER.format(status=status, body=body))))


@pytest.mark.parametrize(
    ("code", "told_as", "fix"),
    [
        ("NotImplemented", "the store does not know conditional put (If-None-Match)", "use a store"),
        ("SlowDown", "the store answers SlowDown", "repeat the command later"),
        ("InternalError", "the store answers InternalError", "repeat the command later"),
        ("ExpiredToken", "the store answers ExpiredToken", "get new credentials"),
        ("RequestTimeTooSkewed", "the store answers RequestTimeTooSkewed", "set the clock of this machine by NTP"),
        ("SignatureDoesNotMatch", "the store answers SignatureDoesNotMatch", "correct tables.root, store.endpoint"),
        ("Unheard", "the store answers Unheard", "see the store's own log"),
    ],
)
def test_a_refusal_is_told_in_words_with_what_mends_it(code: str, told_as: str, fix: str) -> None:
    line = told(code, "x", "<StringToSign>AWS4 secret stuff</StringToSign>")
    assert line.startswith(f"cannot write under s3://b/t: {told_as}. Fix: {fix}")
    assert "secret stuff" not in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ANSWER.format(status="301 Moved Permanently", body=""), "the bucket is in another region"),
        (ANSWER.format(status="403 Forbidden", body=""), "the store answers 403 Forbidden"),
        ("Error performing PUT http://169.254.169.254/latest/api/token in 5s - HTTP error", "there are no credentials"),
        (
            "Generic S3 error: Error performing PUT http://127.0.0.1:1/b/t - HTTP error: error sending request",
            "nothing answers at http://127.0.0.1:1",
        ),
    ],
)
def test_an_answer_without_a_body_is_told_too(text: str, message: str) -> None:
    error = store_error("s3://b/t", "list", OSError(text))
    assert error.message == f"cannot list s3://b/t: {message}"
    assert isinstance(error, Unreachable) is message.startswith("nothing answers")


@pytest.mark.parametrize(
    ("message", "more"),
    [("the region 'us-east-1' is wrong; expecting 'eu-north-1'", ""), ("wrong", "<Region>eu-north-1</Region>")],
)
def test_a_wrong_region_is_told_with_the_right_one(message: str, more: str) -> None:
    answer = told("AuthorizationHeaderMalformed", message, more)
    assert "the bucket is in another region, eu-north-1. Fix: correct store.region" in answer


def test_a_fit_store_passes_and_nothing_is_left_in_it(store: ObjectStore) -> None:
    refuse_unfit(store.address("fit"))
    assert not [file for file in Path(store.folder, BUCKET, "fit").rglob("*") if file.is_file()]


def test_two_of_the_same_name_are_refused_and_the_first_stays(store: ObjectStore) -> None:
    objects = StoreObjects(store.address("objects"))
    assert objects.create("a/one", b"first")
    assert not objects.create("a/one", b"second")
    assert objects.read("a/one") == b"first"
    assert objects.read("a/two") is None
    assert objects.names("a") == ["one"]
    assert objects.names("nowhere") == []
    objects.delete("a/one")
    assert objects.read("a/one") is None


@pytest.mark.parametrize(
    ("change", "bucket", "message"),
    [
        ({}, "nobucket", "the store answers NoSuchBucket"),
        ({"secret_access_key": SecretStr("wrong")}, BUCKET, "the store answers SignatureDoesNotMatch"),
        ({"access_key_id": SecretStr("nobody")}, BUCKET, "the store answers (InvalidAccessKeyId|XAdminUserNotFound)"),
        ({"region": "us-west-2"}, BUCKET, "the bucket is in another region, eu-north-1"),
    ],
)
def test_what_is_wrong_is_told(store: ObjectStore, change: dict[str, Any], bucket: str, message: str) -> None:
    reach_with(store.settings.model_copy(update=change), f"s3://{bucket}")
    with pytest.raises(Refused, match=message) as refused:
        refuse_unfit(f"s3://{bucket}/tables")
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_store_that_does_not_answer_is_named(store: ObjectStore) -> None:
    reach_with(store.settings.model_copy(update={"endpoint": "http://127.0.0.1:9"}), f"s3://{BUCKET}")
    with pytest.raises(Unreachable, match=r"nothing answers at http://127\.0\.0\.1:9"):
        refuse_unfit(f"s3://{BUCKET}/tables")


def test_a_store_that_ignores_conditional_put_is_refused(unconditional: ObjectStore) -> None:
    with pytest.raises(Refused, match=r"the store ignores conditional put \(If-None-Match\)"):
        refuse_unfit(unconditional.address("tables"))


@pytest.fixture
def unconditional(store: ObjectStore) -> Iterator[ObjectStore]:
    """The same store behind a server that lets a conditional put overwrite, as stores do that do not know it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _overwriting(store)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield replace(store, endpoint=f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
        thread.join()


def _overwriting(store: ObjectStore) -> type[BaseHTTPRequestHandler]:
    class Overwriting(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            if self.headers.get("if-none-match") == "*":
                # The header cannot be left out, because it is signed. So what it would find is removed.
                Path(store.folder, self.path.lstrip("/")).unlink(missing_ok=True)
            connection = HTTPConnection(store.endpoint.removeprefix("http://"))
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"transfer-encoding", "connection"}:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815 - the library's names

        def log_message(self, *_: Any) -> None:
            """Tests are quiet."""

    return Overwriting
