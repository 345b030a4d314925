"""The probe of a store, against a real server: what is wrong with it is told plainly."""

from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.errors import Refused, Unreachable, UsageError
from pipeline.tables.object_store import StoreObjects, reach_with, refuse_unfit
from tests.object_store import BUCKET, SECRET, ObjectStore

needs_obstore = pytest.mark.usefixtures("_obstore")


@pytest.fixture
def _obstore() -> None:
    pytest.importorskip("obstore", reason="needs the package obstore: pip install '.[object-store]'")


@needs_obstore
def test_a_fit_store_passes_and_nothing_is_left_in_it(store: ObjectStore) -> None:
    refuse_unfit(store.address("fit"))
    assert not [file for file in Path(store.folder, BUCKET, "fit").rglob("*") if file.is_file()]


@needs_obstore
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


@needs_obstore
@pytest.mark.parametrize(
    ("change", "bucket", "message"),
    [
        ({}, "nobucket", "there is no such bucket"),
        ({"secret_access_key": SecretStr("wrong")}, BUCKET, "the secret does not belong to the access key"),
        ({"access_key_id": SecretStr("nobody")}, BUCKET, "the store does not know the access key"),
        ({"region": "us-west-2"}, BUCKET, "the bucket is in another region, eu-north-1"),
    ],
)
def test_what_is_wrong_is_told(store: ObjectStore, change: dict[str, Any], bucket: str, message: str) -> None:
    reach_with(store.settings.model_copy(update=change), f"s3://{bucket}")
    with pytest.raises(Refused, match=message) as refused:
        refuse_unfit(f"s3://{bucket}/tables")
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


@needs_obstore
def test_a_store_that_does_not_answer_is_named(store: ObjectStore) -> None:
    reach_with(store.settings.model_copy(update={"endpoint": "http://127.0.0.1:9"}), f"s3://{BUCKET}")
    with pytest.raises(Unreachable, match=r"nothing answers at http://127\.0\.0\.1:9"):
        refuse_unfit(f"s3://{BUCKET}/tables")


@needs_obstore
def test_a_store_that_ignores_conditional_put_is_refused(unconditional: ObjectStore) -> None:
    with pytest.raises(Refused, match=r"the store ignores conditional put \(If-None-Match\)"):
        refuse_unfit(unconditional.address("tables"))


def test_without_the_library_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(UsageError, match=r"pip install 'kafka-quota-pipeline\[object-store\]'"):
        refuse_unfit("s3://bucket/tables")


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
