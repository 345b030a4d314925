"""Single objects of a store, read and written by obstore: the library of delta-rs for stores, with the same options."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from pipeline.store.access import S3_SCHEMES, delta_rs_options
from pipeline.store.causes import store_error
from pipeline.store.errors import StoreLibraryMissing

_RETRIES: Final = 2
_PATIENCE: Final = timedelta(seconds=10)
# obstore takes these as options of its client.
_OF_THE_CLIENT: Final = "aws_allow_http"


class StoreObjects:
    """The objects under an address.

    Each call raises `StoreUnfit` if the store refuses, and `StoreUnreachable` if it does not answer within seconds.

    Args:
        address: Of a folder of a store, such as `s3://bucket/tables`.

    Raises:
        StoreLibraryMissing: obstore is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            from obstore.store import from_url  # noqa: PLC0415 - of an extra
        except ImportError as exc:
            raise StoreLibraryMissing(address) from exc
        options: Any = delta_rs_options(address) or {}
        client: Any = {"timeout": "5s", "connect_timeout": "5s"}
        if options.pop(_OF_THE_CLIENT, "") == "true":
            client["allow_http"] = True
        scheme, _, rest = str(address).partition("://")
        url = f"s3://{rest}" if scheme in S3_SCHEMES else str(address)
        retries: Any = {"max_retries": _RETRIES, "retry_timeout": _PATIENCE}
        self._store: Any = from_url(url, config=options or None, client_options=client, retry_config=retries)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object that must not be there yet, by a conditional put. False if the store refused: it is there."""
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415 - of an extra

        with self._told("write under"):
            try:
                self._store.put(name, content, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if there is no such object."""
        with self._told("read"):
            try:
                return bytes(self._store.get(name).bytes())
            except FileNotFoundError as exc:
                if "NoSuchKey" in str(exc) or "BlobNotFound" in str(exc):
                    return None
                raise

    def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder, without those in folders below it."""
        with self._told("list"):
            found = self._store.list_with_delimiter(folder)["objects"]
        return [str(entry["path"]).rpartition("/")[2] for entry in found]

    def delete(self, name: str) -> None:
        """Delete an object. One that is not there is no error."""
        with self._told("delete under"):
            self._store.delete(name)

    @contextmanager
    def _told(self, step: str) -> Iterator[None]:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - of an extra

        try:
            yield
        except (BaseError, OSError) as exc:
            raise store_error(self.address, step, exc) from exc
