"""With its right each call works, over TLS and SASL; without it the error names the right and the command for it."""

from collections.abc import Iterator

import pytest

from pipeline.brokers.native_quotas import NativeQuotas
from pipeline.cluster.acls import ALTER_QUOTAS, DESCRIBE_QUOTAS, Names, acls_of, grant_commands
from pipeline.cluster.errors import PermissionMissing
from tests.pipeline.brokers.quota_broker import user
from tests.pipeline.cluster.secured import Secured, secured_broker

pytestmark = [pytest.mark.broker, pytest.mark.long]

MECHANISM = "SCRAM-SHA-512"
CHANGE = {user("alice"): {"producer_byte_rate": 5.0}, user("bob"): {"producer_byte_rate": 6.0}}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """See `secured_broker`."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


def test_to_see_and_to_change_quotas_need_a_right_each_which_the_error_names(secured: Secured) -> None:
    access = secured.access(MECHANISM, "operator")
    with NativeQuotas(access) as native:
        for right, call in ((DESCRIBE_QUOTAS, native.describe), (ALTER_QUOTAS, lambda: native.alter(CHANGE))):
            with pytest.raises(PermissionMissing) as refused:
                call()
            assert refused.value.acls == (right,)
            assert f"'User:operator' must be allowed {right.operation} on the cluster" in str(refused.value)
            assert refused.value.remedy == grant_commands([right], "User:operator", access.bootstrap_servers)[0]
            assert refused.value.remedy.endswith(f"--operation {right.operation} --cluster")
        secured.allow("operator", [DESCRIBE_QUOTAS, ALTER_QUOTAS])
        assert native.alter(CHANGE) == []
        assert {quota.entity for quota in native.describe()} <= set(CHANGE)
    secured.forbid("operator", [DESCRIBE_QUOTAS, ALTER_QUOTAS])


def test_the_printed_rights_of_an_import_are_enough_to_see_quotas_and_no_more(secured: Secured) -> None:
    rights = acls_of("import", Names("u", "t", "m", "j"))
    secured.allow("gate", rights)
    with NativeQuotas(secured.access(MECHANISM, "gate")) as native:
        native.describe()
        assert native.broker_ids() == [1]
        with pytest.raises(PermissionMissing):
            native.alter(CHANGE, validate_only=True)
    secured.forbid("gate", rights)
