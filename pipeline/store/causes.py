"""What a store's answer means, in words: stores name the cause of a refusal in `<Code>`, in XML."""

import re
from typing import Final
from urllib.parse import urlsplit

from pipeline.errors import first_line
from pipeline.store.errors import StoreUnfit, StoreUnreachable

_CODE: Final = re.compile(r"<Code>([^<]+)</Code>")
_REGION: Final = re.compile(r"<Region>([^<]+)</Region>|expecting '?&?#?3?4?;?([a-z0-9-]+)")
_NO_ANSWER: Final = ("error sending request", "ConnectError", "dns error", "operation timed out")
_NO_CREDENTIALS: Final = ("InstanceMetadata", "169.254.169.254", "metadata/instance", "computeMetadata")
_WRONG_REGION: Final = ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
_SETTINGS: Final = "store.access_key_id and store.secret_access_key, or the environment variables of AWS"

# Code of the store -> what is wrong, what to do.
_KNOWN: Final = {
    "NoSuchBucket": ("there is no such bucket", "create it, or correct tables.root and store.endpoint"),
    "ContainerNotFound": ("there is no such container", "create it, or correct tables.root"),
    "AccessDenied": (
        "the store denies access",
        "grant s3:ListBucket on the bucket, s3:GetObject, s3:PutObject and s3:DeleteObject on what is under this root",
    ),
    "InvalidAccessKeyId": ("the store does not know the access key", f"correct {_SETTINGS}"),
    "XAdminUserNotFound": ("the store does not know the access key", f"correct {_SETTINGS}"),
    "SignatureDoesNotMatch": ("the secret does not belong to the access key", f"correct {_SETTINGS}"),
    "ExpiredToken": ("the session token has expired", "get new credentials"),
    "RequestTimeTooSkewed": ("the clock of this machine is wrong", "set it by NTP"),
    "NotImplemented": (
        "the store does not know conditional put (If-None-Match), with which two commits are kept apart",
        "use a store, or a version of it, that has conditional put",
    ),
}


def store_error(address: str, step: str, failure: BaseException) -> StoreUnfit:
    """The error for what a store answered.

    Args:
        address: What was looked at.
        step: What was tried: "list", "read", "write" or "delete under".
        failure: What the library raised. Its text holds the store's answer, of which only code and region are told.
    """
    text = str(failure)
    found = _CODE.search(text)
    code = found[1] if found else ""
    if code in _WRONG_REGION or "301 Moved" in text:
        region = _REGION.search(text)
        wanted = f", {region[1] or region[2]}" if region else ""
        return StoreUnfit(
            address, step, f"the bucket is in another region{wanted}", "correct store.region, or AWS_REGION"
        )
    if code in _KNOWN:
        return StoreUnfit(address, step, *_KNOWN[code])
    if any(sign in text for sign in _NO_CREDENTIALS):
        return StoreUnfit(address, step, "there are no credentials", f"set {_SETTINGS}")
    if not code and any(sign in text for sign in _NO_ANSWER):
        endpoint = _endpoint_in(text)
        return StoreUnreachable(
            address, step, f"nothing answers at {endpoint}", "correct store.endpoint, or the network"
        )
    if not code and "403 Forbidden" in text:
        return StoreUnfit(address, step, *_KNOWN["AccessDenied"])
    cause = f"the store answers {code}" if code else first_line(failure)
    return StoreUnfit(address, step, cause, "see what the store's own log says")


def _endpoint_in(text: str) -> str:
    address = re.search(r"https?://[^\s,)]+", text)
    parts = urlsplit(address[0]) if address else None
    return f"{parts.scheme}://{parts.netloc}" if parts else "the endpoint"
