"""Why a client did not connect, as an error an operator can act on.

The causes are exceptions of kafka-python, OpenSSL and the operating system; here each becomes one line and a remedy.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kafka import errors as kafka_errors

from pipeline.cluster.errors import ClusterUnreachable, SignInRefused, TokenRefused
from pipeline.cluster.handshake import TIMED_OUT
from pipeline.errors import PipelineError


class LostWhileSigningIn(OSError):
    """The broker spoke this protocol and then closed the connection."""


def connection_error(
    address: str, options: Mapping[str, Any], causes: Sequence[BaseException], timeout_ms: int
) -> PipelineError:
    """The error that says why a client did not connect.

    Args:
        address: What was tried.
        options: kafka-python options it was tried with.
        causes: What the attempts failed with, the latest last. A refusal is reported before anything else.
        timeout_ms: How long the client tried.
    """
    token = _latest(causes, TokenRefused)
    if isinstance(token, TokenRefused):
        return token
    protocol = options.get("security_protocol", "PLAINTEXT")
    return _refusal(address, options, causes) or _unreachable(address, protocol, causes, timeout_ms)


def _refusal(address: str, options: Mapping[str, Any], causes: Sequence[BaseException]) -> SignInRefused | None:
    """The error of a broker that answers and refuses; None if no broker answers."""
    user = str(options.get("sasl_plain_username", ""))
    if _latest(causes, kafka_errors.IllegalSaslStateError) is not None:
        return SignInRefused(address, user, "this listener knows no SASL", _PROTOCOL)
    if _latest(causes, kafka_errors.UnsupportedSaslMechanismError) is not None:
        return SignInRefused(address, user, f"this listener does not have the mechanism {options['sasl_mechanism']}")
    refused = _latest(causes, kafka_errors.SaslAuthenticationFailedError, kafka_errors.AuthorizationError)
    if refused is not None:
        return SignInRefused(address, user, _words(refused))
    if options.get("security_protocol", "").startswith("SASL_") and _latest(causes, LostWhileSigningIn) is not None:
        # kafka-python often sees the end of the connection before the answer that gives the reason.
        reason = "it closes the connection at sign-in, as it does on a wrong mechanism, user or password"
        return SignInRefused(address, user, reason)
    alert = _latest(causes, kafka_errors.KafkaConnectionError, OSError)
    if alert is not None and "alert" in _words(alert):
        # Only the broker's log says which of the three it is.
        reason = "it wants a client certificate that it trusts and that has not expired"
        return SignInRefused(address, user, reason, _OWN_CERTIFICATE)
    return None


def _unreachable(address: str, protocol: str, causes: Sequence[BaseException], timeout_ms: int) -> ClusterUnreachable:
    failed = _latest(causes, kafka_errors.KafkaConnectionError, OSError)
    words = _words(failed) if failed is not None else f"no answer within {timeout_ms / 1000:g} s"
    for known in _KNOWN_CAUSES:
        if known.word in words:
            return ClusterUnreachable(address, known.cause.format(protocol=protocol), known.remedy)
    return ClusterUnreachable(address, words, _LOOK_EVERYWHERE)


def _latest(causes: Sequence[BaseException], *kinds: type[BaseException]) -> BaseException | None:
    return next((cause for cause in reversed(causes) if isinstance(cause, kinds)), None)


class _KnownCause(NamedTuple):
    word: str
    cause: str
    remedy: str


_PROTOCOL: Final = "set security.protocol of the client properties to that of the listener"
_LOOK_EVERYWHERE: Final = "check the address, security.protocol of the client properties and the broker's log"
_OWN_CERTIFICATE: Final = (
    "give such a certificate and its key, in PEM, in ssl.keystore.location of the client properties"
)
_KNOWN_CAUSES: Final = (
    _KnownCause("ECONNREFUSED", "connection refused", "start the broker, or correct --bootstrap-server"),
    _KnownCause("DNS", "the host name has no address", "correct the host name in --bootstrap-server"),
    _KnownCause("certificate has expired", "its certificate has expired", "renew the broker's certificate"),
    _KnownCause(
        "certificate is not yet valid", "its certificate is not valid yet", "correct the clock of this machine"
    ),
    _KnownCause(
        "certificate is not valid for",
        "its certificate is for another name",
        "reach it by a name in its certificate, or add the one in --bootstrap-server to the certificate",
    ),
    _KnownCause(
        "certificate verify failed",
        "its certificate is not from an authority that is trusted here",
        "put the certificate of that authority, in PEM, into ssl.truststore.location of the client properties",
    ),
    _KnownCause(
        TIMED_OUT,
        "it does not answer the TLS handshake",
        "check that this is the address of a broker's TLS listener, and see that broker's log",
    ),
    _KnownCause("wrong version number", "it does not speak TLS on this port", _PROTOCOL),
    _KnownCause("disconnected", "it closes the connection to a {protocol} client", _PROTOCOL),
    _KnownCause("Handshake", "the TLS handshake fails", _PROTOCOL),
)
"""The first whose word is in the text of the cause is used."""


def _words(error: BaseException) -> str:
    # kafka-python puts the class name, often twice, and a number before the text.
    return str(error).split("Error: ")[-1].removeprefix("Authentication failed: ")
