"""Certificates and signed tokens for tests, made by the openssl command."""

import base64
import json
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


def openssl(folder: Path, *arguments: str, given: bytes = b"") -> bytes:
    command = [shutil.which("openssl") or "openssl", *arguments]
    done = subprocess.run(command, cwd=folder, input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@dataclass(frozen=True)
class Identity:
    """A private key (PKCS 8) and its certificate, in PEM files."""

    key: Path
    certificate: Path

    @property
    def keystore(self) -> Path:
        """Both in one file."""
        both = self.key.with_name(f"{self.key.stem}-keystore.pem")
        both.write_text(self.key.read_text() + self.certificate.read_text())
        both.chmod(0o600)
        return both


class Authority:
    """A certificate authority in a folder of its own."""

    def __init__(self, folder: Path, name: str = "test-ca") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key, self.certificate = folder / "ca.key", folder / "ca.pem"
        openssl(
            folder,
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", "ca.key", "-out", "ca.pem"),
        )

    def issue(self, name: str, alternative_names: str = "", *, expired: bool = False) -> Identity:
        """A certificate for CN=name and, say, `IP:127.0.0.1,DNS:localhost`; an expired one ends at once."""
        key, request, certificate = f"{name}.key", f"{name}.csr", f"{name}.pem"
        openssl(
            self._folder,
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", key, "-out", request),
        )
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative_names}\n" if alternative_names else "\n")
        openssl(
            self._folder,
            *("x509", "-req", "-in", request, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-extfile", extensions.name, "-out", certificate, "-days", "0" if expired else "2"),
        )
        return Identity(self._folder / key, self._folder / certificate)


class TokenSigner:
    """Signs JWTs with RS256; `jwks` is what a broker verifies them by."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        openssl(folder, "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "token.key")
        modulus = openssl(folder, "rsa", "-in", "token.key", "-noout", "-modulus").decode().strip().partition("=")[2]
        key = {
            "kty": "RSA",
            "kid": "test",
            "use": "sig",
            "alg": "RS256",
            "e": "AQAB",
            "n": _b64(bytes.fromhex(modulus)),
        }
        self.jwks = folder / "jwks.json"
        self.jwks.write_text(json.dumps({"keys": [key]}))

    def token(self, subject: str, life_seconds: float = 600) -> str:
        """A token for a subject, that ends in so many seconds."""
        now = int(time.time())
        claims = {"iss": "test", "sub": subject, "iat": now, "exp": now + life_seconds, "scope": "kafka"}
        header = {"alg": "RS256", "kid": "test", "typ": "JWT"}
        text = ".".join(_b64(json.dumps(part).encode()) for part in (header, claims))
        signature = openssl(self._folder, "dgst", "-sha256", "-sign", "token.key", given=text.encode())
        return f"{text}.{_b64(signature)}"


def _b64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
