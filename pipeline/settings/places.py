"""Where tables and checkpoint may lie: folders, object stores and Spark catalogs."""

import re
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

# A root of tables in a Spark catalog, as `catalog:main.kquota`: how it is written, and what goes with it.

PREFIX: Final = "catalog:"
TRIGGER_MS: Final = 3_000
"""`stream.trigger_ms` of a job with such a root, where nothing else is set: docs/catalog-tables.md has why."""

_ROOT: Final = re.compile(r"catalog:([A-Za-z0-9_-]+)\.([A-Za-z0-9_]+)")


def is_in_catalog(address: str) -> bool:
    """Whether an address is a name in a catalog, not a folder or a URI."""
    return address.startswith(PREFIX)


class CatalogRoot(str):
    """A root of tables in a catalog: a text like any other root, that knows its parts.

    Attributes:
        location: The folder or place in a store that has its tables by their names; None where the catalog chooses a
            place for each.
    """

    catalog: str
    schema: str
    location: str | None

    def __new__(cls, root: str, location: str | None) -> Self:
        """Make one of a text; `ValueError` if that is not `catalog:CATALOG.SCHEMA`."""
        found = _ROOT.fullmatch(root)
        if found is None:
            form = "catalog:CATALOG.SCHEMA of letters, digits and _, in the catalog's name also -"
            message = f"'tables.root' {root} is not {form}, as catalog:main.kquota"
            raise ValueError(message)
        made = super().__new__(cls, root)
        made.catalog, made.schema = found.groups()
        made.location = location
        return made

    def __reduce__(self) -> tuple[type["CatalogRoot"], tuple[str, str | None]]:
        """For copies, also in other processes."""
        return CatalogRoot, (str(self), self.location)

    @property
    def sql_schema(self) -> str:
        """The schema as SQL writes it."""
        return f"`{self.catalog}`.`{self.schema}`"

    def table(self, name: str) -> "CatalogTable":
        """The table of this name."""
        made = CatalogTable(f"{self}.{name}")
        made.sql_name = f"{self.sql_schema}.`{name}`"
        return made


class CatalogTable(str):
    """The address of a table in a catalog, as `catalog:main.kquota.usage`."""

    sql_name: str


# delta-rs takes these for parts of a URI, also in the path of a folder: it reads another folder, or none.
_NOT_IN_A_FOLDER: Final = re.compile(r"[#?\[\]\\]|%[0-9A-Fa-f]{2}")
_S3: Final = ("s3://", "s3a://")


def refuse_unfit_place(root: str, location: str | None, writer: str, *, has_root: bool) -> None:
    """Refuse (`ValueError`) settings with which tables are not found again, or are overwritten.

    * `has_root`: Whether the root is given, and not the default.
    """
    if is_in_catalog(root):
        CatalogRoot(root, location)
        if writer != "delta-spark":
            msg = f"'tables.writer' {writer} cannot write to {root}: only delta-spark commits to a catalog"
            raise ValueError(msg)
        if location is not None:
            _refuse_unfit_folder("location", location)
        return
    if location is not None and not has_root:
        msg = "'tables.location' needs a 'tables.root' such as catalog:main.kquota"
        raise ValueError(msg)
    _refuse_unfit_folder("root", root)
    if writer == "delta-spark" and root.lower().startswith(_S3):
        # Seen with Delta 4.4.0 and Hadoop 3.5.0: the second of two files of the same name is accepted.
        msg = (
            "'tables.writer' delta-spark cannot write to S3: it looks whether a commit is there and then writes it, "
            "so that two drivers could overwrite each other's; use delta-rs"
        )
        raise ValueError(msg)


def _refuse_unfit_folder(key: str, place: str) -> None:
    if "://" in place:
        return
    folder = str(Path(place).absolute())
    found = _NOT_IN_A_FOLDER.search(folder)
    if found is not None:
        msg = f"'tables.{key}' {folder} contains {found[0]}, which Delta takes for a part of a URI"
        raise ValueError(msg)


class Branch(BaseModel):
    """One frozen branch of the settings tree."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# The object store of tables and checkpoint: the settings to reach it, and addresses that carry them.


class StoreSettings(Branch):
    """The object store of tables and checkpoint. What is not set here comes from where AWS's own tools look."""

    endpoint: str | None = Field(
        None,
        description="URL of a store that speaks S3; null: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else Amazon's own",
    )
    region: str | None = Field(None, description="null: AWS_REGION, AWS_DEFAULT_REGION, else us-east-1")
    access_key_id: SecretStr | None = Field(
        None, description="null: AWS_ACCESS_KEY_ID, else what the machine or its role has"
    )
    secret_access_key: SecretStr | None = Field(None, description="null: AWS_SECRET_ACCESS_KEY, likewise")
    session_token: SecretStr | None = Field(None, description="null: AWS_SESSION_TOKEN, likewise")
    options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="further options of delta-rs, as azure_storage_account_key or google_service_account; "
        "no value is printed. Those of Spark are entries of spark.conf",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            msg = f"'store.endpoint' {self.endpoint} does not begin with http:// or https://"
            raise ValueError(msg)
        if (self.access_key_id is None) != (self.secret_access_key is None):
            msg = "only one of 'store.access_key_id' and 'store.secret_access_key' is set"
            raise ValueError(msg)
        return self


class StoreAddress(str):
    """An address in an object store, as `s3://bucket/tables`, that knows how the store is reached.

    It is a text like any other address, so that whoever takes an address takes this one. An address that is made from
    its text alone is reached with what the environment has.
    """

    store: StoreSettings

    def __new__(cls, address: str, store: StoreSettings) -> Self:
        """Make one of a text."""
        made = super().__new__(cls, address)
        made.store = store
        return made

    def __reduce__(self) -> tuple[type["StoreAddress"], tuple[str, StoreSettings]]:
        """For copies, also in other processes."""
        return StoreAddress, (str(self), self.store)

    def below(self, name: str) -> "StoreAddress":
        """The address of what has this name under this one."""
        return StoreAddress(f"{self.rstrip('/')}/{name}", self.store)
