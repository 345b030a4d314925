"""The object store of tables and checkpoint: the settings to reach it, and addresses that carry them."""

from typing import Final, Self

from pydantic import Field, SecretStr, model_validator

from pipeline.settings.branch import Branch

_SCHEMES: Final = ("http://", "https://")


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
        if self.endpoint is not None and not self.endpoint.startswith(_SCHEMES):
            msg = f"'store.endpoint' must begin with http:// or https://; got {self.endpoint}"
            raise ValueError(msg)
        if (self.access_key_id is None) != (self.secret_access_key is None):
            msg = "'store.access_key_id' and 'store.secret_access_key' must be given together; got one of them"
            raise ValueError(msg)
        return self


class StoreAddress(str):
    """An address in an object store, as `s3://bucket/tables`, that knows how the store is reached.

    It is a text like any other address, so that whoever takes an address takes this one. An address that is made from
    its text alone is reached with what the environment says.

    Attributes:
        store: The settings of the store.
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
