"""How a store is reached: one set of settings, told to delta-rs, to obstore and to Hadoop's classes in Spark's JVM.

What the settings leave open is left to each of them: they look into the same environment variables and at the role of
the machine. Hadoop does not look for an endpoint or a region there, so it is told.
"""

import os
from collections.abc import Mapping
from typing import Final

from pydantic import SecretStr

from pipeline.settings.store import StoreAddress, StoreSettings

S3_SCHEMES: Final = ("s3", "s3a")
STORE_SCHEMES: Final = (*S3_SCHEMES, "abfs", "abfss", "az", "gs")
"""The stores that delta-rs and obstore know."""
_ENDPOINT: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_HADOOP: Final = "org.apache.hadoop.fs.s3a"


def scheme_of(address: str) -> str:
    """The scheme of an address, in small letters; "" for a folder."""
    scheme, separator, _ = address.partition("://")
    return scheme.lower() if separator else ""


def delta_rs_options(address: str) -> dict[str, str] | None:
    """The options with which delta-rs reaches an address; None if it needs none.

    Args:
        address: A folder, or a place in a store. Only a `StoreAddress` has settings.
    """
    if not isinstance(address, StoreAddress):
        return None
    store = address.store
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

    `s3://` means the same there as for delta-rs.

    Args:
        store: The settings.
        environ: Where endpoint and region are looked up that the settings leave open.
    """
    endpoint = endpoint_of(store, environ)
    found = {
        "fs.s3.impl": f"{_HADOOP}.S3AFileSystem",
        "fs.AbstractFileSystem.s3.impl": f"{_HADOOP}.S3A",
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.path.style.access": "true" if endpoint else None,
        "fs.s3a.endpoint.region": _first_set(store.region, _REGION, environ) or ("us-east-1" if endpoint else None),
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
