"""Where tables and checkpoint may lie: folders and object stores."""

import re
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

# delta-rs takes these for parts of a URI, also in the path of a folder: it reads another folder, or none.
_NOT_IN_A_FOLDER: Final = re.compile(r"[#?\[\]\\]|%[0-9A-Fa-f]{2}")


def refuse_unfit_root(root: str) -> None:
    """Refuse (`ValueError`) a folder of tables that Delta takes for another one."""
    if "://" in root:
        return
    folder = str(Path(root).absolute())
    found = _NOT_IN_A_FOLDER.search(folder)
    if found is not None:
        msg = f"'tables.root' {folder} contains {found[0]}, which Delta takes for a part of a URI"
        raise ValueError(msg)


class Branch(BaseModel):
    """One frozen branch of the settings tree."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
