"""With its right each call works, over TLS and SASL; without it the error names the right and the command for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.brokers.native import NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.acls import ALTER_QUOTAS, DESCRIBE_QUOTAS, Names, PermissionMissing, acls_of, grant_commands
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from tests.pipeline.brokers.quota_broker import user, values_in
from tests.pipeline.cli.running import new_tables
from tests.pipeline.cluster.secured import Secured, secured_broker
from tests.pipeline.sync.test_sync_command import running_sync
from tests.waiting import wait_until

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
            assert f"'User:operator' is not allowed {right.operation} on the cluster" in str(refused.value)
            assert refused.value.fix == grant_commands([right], "User:operator", access.bootstrap_servers)[0]
            assert refused.value.fix.endswith(f"--operation {right.operation} --cluster")
        secured.allow("operator", [DESCRIBE_QUOTAS, ALTER_QUOTAS])
        assert native.alter(CHANGE) == []
        assert {quota.entity for quota in native.describe()} <= set(CHANGE)
    secured.forbid("operator", [DESCRIBE_QUOTAS, ALTER_QUOTAS])


def test_a_sync_that_loses_its_right_logs_one_line_and_goes_on_when_it_is_given_back(
    secured: Secured, tmp_path: Path
) -> None:
    quotas = QuotaTable(new_tables(tmp_path / "tables"))
    admin = ClusterAccess(secured.broker.bootstrap_servers)
    file = secured.file(secured.properties(MECHANISM, "operator"))
    tables = ("--tables", str(tmp_path / "tables"))
    flags = ("--bootstrap-server", secured.address(MECHANISM), "--command-config", str(file), *tables)

    def edit(bound: float) -> None:
        quotas.alter([QuotaChange("synced", "", {"producer_byte_rate": bound})], local_audit("test"))

    def await_value(bound: float) -> None:
        wait_until(lambda: values_in(native).get(user("synced")) == {"producer_byte_rate": bound}, f"{bound} there")

    edit(1e6)
    with NativeQuotas(admin) as native:
        with running_sync(*flags) as refused:
            assert refused.await_end() == PermissionMissing.exit_code
            told = [line for line in refused.log.splitlines() if " INFO " not in line]
            assert len(told) == 1, told
            assert "'User:operator' is not allowed DescribeConfigs on the cluster" in told[0]
        rights = acls_of("sync", Names("u", "t", "m", "j"))
        secured.allow("operator", rights)
        with running_sync(*flags) as sync:
            await_value(1e6)
            secured.forbid("operator", [ALTER_QUOTAS])
            edit(2e6)
            sync.wait_for(" WARNING ")
            secured.allow("operator", [ALTER_QUOTAS])
            await_value(2e6)
            sync.wait_for("works again after")
            assert sync.stop() == 0
            told = [line for line in sync.log.splitlines() if " INFO " not in line]
            assert len(told) == 1, told
            assert "'User:operator' is not allowed AlterConfigs on the cluster" in told[0]
        native.alter({user("synced"): {"producer_byte_rate": None}})
    secured.forbid("operator", rights)


def test_the_printed_rights_of_an_import_are_enough_to_see_quotas_and_no_more(secured: Secured) -> None:
    rights = acls_of("import", Names("u", "t", "m", "j"))
    secured.allow("gate", rights)
    with NativeQuotas(secured.access(MECHANISM, "gate")) as native:
        native.describe()
        assert native.broker_ids() == [1]
        with pytest.raises(PermissionMissing):
            native.alter(CHANGE)
    secured.forbid("gate", rights)
