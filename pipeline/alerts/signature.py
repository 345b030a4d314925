"""The signature of a message: who has the key can tell that it is from here, unchanged and not old."""

import hashlib
import hmac
from typing import Final

TIMESTAMP_HEADER: Final = "X-Kquota-Timestamp"
SIGNATURE_HEADER: Final = "X-Kquota-Signature"


def signature(key: bytes, timestamp: str, body: bytes) -> str:
    """The value of `SIGNATURE_HEADER`: `sha256=` and HMAC-SHA256 of the timestamp, a full stop and the body, in hex.

    Args:
        key: Shared with the receiver.
        timestamp: The value of `TIMESTAMP_HEADER`: whole seconds since the epoch, in decimal digits.
        body: The body, byte for byte.
    """
    return f"sha256={hmac.new(key, timestamp.encode() + b'.' + body, hashlib.sha256).hexdigest()}"
