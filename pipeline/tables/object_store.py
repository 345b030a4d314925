"""Object stores: how they are reached, what their errors mean, and whether they do what tables need.

The same settings go to delta-rs, to obstore and to Hadoop's classes in Spark's JVM. What they leave open is left to
each of them: they look into the same environment variables and at the role of the machine. Hadoop does not look for an
endpoint or a region there, so it gets them.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url
from pydantic import SecretStr

from pipeline.errors import PipelineError, Refused, Unreachable, first_line
from pipeline.settings.model import StoreSettings

S3_SCHEMES: Final = ("s3", "s3a")
STORE_SCHEMES: Final = (*S3_SCHEMES, "abfs", "abfss", "az", "gs")
"""The stores that delta-rs and obstore know."""
_ENDPOINT: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_HADOOP: Final = "org.apache.hadoop.fs.s3a"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def scheme_of(address: str) -> str:
    """The scheme of a URI, in small letters; "" for a folder of this machine."""
    found = _SCHEME.match(address)
    return found[1].lower() if found else ""


_STORES: Final[dict[str, StoreSettings]] = {}


def reach_with(store: StoreSettings, *addresses: str) -> None:
    """Make this process reach the buckets of these addresses with these settings; a program does it once, first of all.

    What is in another bucket is reached with what the environment has.
    """
    _STORES.update({_bucket_of(address): store for address in addresses if scheme_of(address)})


def _bucket_of(address: str) -> str:
    return "/".join(address.split("/", 3)[:3])


def delta_rs_options(address: str) -> dict[str, str] | None:
    """The options with which delta-rs reaches an address; None if it needs none."""
    store = _STORES.get(_bucket_of(address))
    if store is None:
        return None
    options = {key: value.get_secret_value() for key, value in store.options.items()}
    if scheme_of(address) in S3_SCHEMES:
        endpoint = endpoint_of(store)
        found = {
            "aws_endpoint": endpoint,
            "aws_allow_http": "true" if endpoint and endpoint.startswith("http://") else None,
            "aws_region": _first_set(store.region, _REGION),
            "aws_access_key_id": _text(store.access_key_id),
            "aws_secret_access_key": _text(store.secret_access_key),
            "aws_session_token": _text(store.session_token),
        }
        options = {**{key: value for key, value in found.items() if value}, **options}
    return options or None


def hadoop_settings(store: StoreSettings, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The entries of Spark's configuration with which its JVM reaches a store that speaks S3.

    `s3://` means the same there as for delta-rs. What the settings leave open is looked up in `environ`.
    """
    endpoint = endpoint_of(store, environ)
    region = _first_set(store.region, _REGION, environ)
    found = {
        "fs.s3.impl": f"{_HADOOP}.S3AFileSystem",
        "fs.AbstractFileSystem.s3.impl": f"{_HADOOP}.S3A",
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.path.style.access": "true" if endpoint else None,
        "fs.s3a.endpoint.region": region or ("us-east-1" if endpoint else None),
        "fs.s3a.access.key": _text(store.access_key_id),
        "fs.s3a.secret.key": _text(store.secret_access_key),
        "fs.s3a.session.token": _text(store.session_token),
    }
    return {f"spark.hadoop.{key}": value for key, value in found.items() if value}


def endpoint_of(store: StoreSettings, environ: Mapping[str, str] = os.environ) -> str | None:
    """The endpoint of a store that speaks S3; None for Amazon's own."""
    return _first_set(store.endpoint, _ENDPOINT, environ)


def _first_set(value: str | None, variables: tuple[str, ...], environ: Mapping[str, str] = os.environ) -> str | None:
    return value or next((environ[name] for name in variables if environ.get(name)), None)


def _text(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


# What a store's answer means: stores name the cause of a refusal in `<Code>`, in XML.

_CODE: Final = re.compile(r"<Code>([^<]+)</Code>")
_REGION_CAUSES: Final = re.compile(r"<Region>([^<]+)</Region>|expecting '?&?#?3?4?;?([a-z0-9-]+)")
_NO_ANSWER: Final = ("error sending request", "ConnectError", "dns error", "operation timed out")
_NO_CREDENTIALS: Final = ("InstanceMetadata", "169.254.169.254", "metadata/instance", "computeMetadata")
_WRONG_REGION: Final = ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
_SETTINGS: Final = "store.access_key_id and store.secret_access_key, or the environment variables of AWS"
_REFUSED: Final = (
    f"correct tables.root, store.endpoint, or {_SETTINGS}; grant s3:ListBucket on the bucket, s3:GetObject, "
    "s3:PutObject and s3:DeleteObject on what is under this root"
)
# By what a code, or the status without one, contains; the first one counts. Anything else is the store's own trouble.
_FIXES: Final = {
    "ExpiredToken": "get new credentials",
    "RequestTimeTooSkewed": "set the clock of this machine by NTP",
    **dict.fromkeys(("SlowDown", "InternalError", "ServiceUnavailable", "ServerBusy"), "repeat the command later"),
    **dict.fromkeys(("NoSuch", "NotFound", "AccessDenied", "Invalid", "Signature", "403 Forbidden"), _REFUSED),
}
_SEE_LOG: Final = "see the store's own log"
_UNCONDITIONAL: Final = "use a store, or a version of it, that has conditional put"


def store_error(address: str, step: str, failure: BaseException) -> PipelineError:
    """The error for what a library raised: the store's answer, of which only code and region are shown."""
    text = str(failure)
    found = _CODE.search(text)
    code = found[1] if found else ""
    if code in _WRONG_REGION or "301 Moved" in text:
        region = _REGION_CAUSES.search(text)
        wanted = f", {region[1] or region[2]}" if region else ""
        return _unfit(address, step, f"the bucket is in another region{wanted}", "correct store.region, or AWS_REGION")
    if code == "NotImplemented":
        return _unfit(address, step, "the store does not know conditional put (If-None-Match)", _UNCONDITIONAL)
    if any(sign in text for sign in _NO_CREDENTIALS):
        return _unfit(address, step, "there are no credentials", f"set {_SETTINGS}")
    answer = code or ("403 Forbidden" if "403 Forbidden" in text else "")
    if answer:
        fix = next((fix for sign, fix in _FIXES.items() if sign in answer), _SEE_LOG)
        return _unfit(address, step, f"the store answers {answer}", fix)
    if any(sign in text for sign in _NO_ANSWER):
        found = re.search(r"https?://[^/\s,)]+", text)
        message = f"cannot {step} {address}: nothing answers at {found[0] if found else 'the endpoint'}"
        return Unreachable(message, "correct store.endpoint, or the network")
    return _unfit(address, step, first_line(failure), _SEE_LOG)


def _unfit(address: str, step: str, cause: str, fix: str) -> Refused:
    return Refused(f"cannot {step} {address}: {cause}", fix)


# Single objects of a store, read and written by obstore: the library of delta-rs for stores, with the same options.

_RETRIES: Final = 2
_PATIENCE: Final = timedelta(seconds=10)
# obstore takes these as options of its client.
_OF_THE_CLIENT: Final = "aws_allow_http"


class StoreObjects:
    """The objects under an address of a store's folder, such as `s3://bucket/tables`.

    Each call raises `Refused` if the store refuses, and `Unreachable` if it does not answer within seconds.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        options: Any = delta_rs_options(address) or {}
        client: Any = {"timeout": "5s", "connect_timeout": "5s"}
        if options.pop(_OF_THE_CLIENT, "") == "true":
            client["allow_http"] = True
        scheme, _, rest = address.partition("://")
        url = f"s3://{rest}" if scheme in S3_SCHEMES else address
        retries: Any = {"max_retries": _RETRIES, "retry_timeout": _PATIENCE}
        self._store: Any = from_url(url, config=options or None, client_options=client, retry_config=retries)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object that must not be there yet, by a conditional put. False if the store refused: it is there."""
        with self._named_errors("write under"):
            try:
                self._store.put(name, content, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if there is no such object."""
        with self._named_errors("read"):
            try:
                return bytes(self._store.get(name).bytes())
            except FileNotFoundError as exc:
                if "NoSuchKey" in str(exc) or "BlobNotFound" in str(exc):
                    return None
                raise

    def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder, without those in folders below it."""
        with self._named_errors("list"):
            found = self._store.list_with_delimiter(folder)["objects"]
        return [str(entry["path"]).rpartition("/")[2] for entry in found]

    def delete(self, name: str) -> None:
        """Delete an object. One that is not there is no error."""
        with self._named_errors("delete under"):
            self._store.delete(name)

    @contextmanager
    def _named_errors(self, step: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as exc:
            raise store_error(self.address, step, exc) from exc


# Whether a store does what tables need: list, write, read, delete, and refuse to overwrite.
#
# A commit to a table is an object that must not be there yet. On a store that ignores this condition, two writers would
# overwrite each other's commits without any message. So the condition is tried, with an object that is deleted again.

_FOLDER: Final = ".kquota-probe"


def refuse_unfit(address: str) -> None:
    """Try everything that tables need of a store; raises as `StoreObjects` if something is refused or ignored."""
    objects = StoreObjects(address)
    name, content = f"{_FOLDER}/{uuid4().hex}", uuid4().bytes
    objects.names("")
    if not objects.create(name, content):
        raise _unfit(address, "write under", "an object with a name of no other is there already", "try again")
    is_consistent = objects.read(name) == content
    is_overwritten = objects.create(name, uuid4().bytes)
    objects.delete(name)
    if not is_consistent:
        cause = "what was written is not what is read"
        raise _unfit(address, "read", cause, "use a store that is consistent after a write")
    if is_overwritten:
        cause = "the store ignores conditional put (If-None-Match): the second write of one object was accepted"
        raise _unfit(address, "keep commits apart under", cause, _UNCONDITIONAL)
