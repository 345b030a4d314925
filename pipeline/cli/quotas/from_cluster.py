"""Reads the quotas that a cluster's brokers enforce, for `kquota quotas import --from-cluster`."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import flags
from pipeline.cli.quotas.errors import QuotaUsage
from pipeline.errors import printable

if TYPE_CHECKING:
    from pipeline.tables.quotas.file import DeclaredQuota

SCALES: Final = ("keep", "brokers")

FromCluster = Annotated[
    bool,
    typer.Option(
        "--from-cluster", help="Take the quotas that the cluster's brokers enforce. Other quotas of the table stay."
    ),
]
Scale = Annotated[
    str | None,
    typer.Option(
        "--scale",
        metavar="keep|brokers",
        help="With --from-cluster: keep each bound as it is, or multiply it by the number of brokers.",
        show_default="keep",
    ),
]


def refuse_mixed(source: str | None, from_cluster: bool, scale: str | None, bootstrap_server: str | None) -> None:
    """Refuse flags that name two places to import from, or none, or that have no effect.

    Args:
        source: Of `--from`; None = not given.
        from_cluster: Whether `--from-cluster` is given.
        scale: Of `--scale`; None = not given.
        bootstrap_server: Likewise.

    Raises:
        QuotaUsage: They do.
    """
    if from_cluster == (source is not None):
        got = "both" if from_cluster else "neither"
        msg = f"One of '--from' and '--from-cluster' must be given; got {got}"
        raise QuotaUsage(msg, "give --from FILE, or --from-cluster with --bootstrap-server")
    for option, value in (("--scale", scale), ("--bootstrap-server", bootstrap_server)):
        if value is not None and not from_cluster:
            msg = f"'{option}' must be given with --from-cluster; got it with --from"
            raise QuotaUsage(msg, f"leave out {option}")
    if scale not in {None, *SCALES}:
        msg = f"'--scale' must be one of {', '.join(SCALES)}; got {scale}"
        raise QuotaUsage(msg, f"for example --scale {SCALES[0]}")


def read_cluster(
    config: Path | None, bootstrap_server: str | None, command_config: Path | None, scale: str | None
) -> "list[DeclaredQuota]":
    """The quotas of a cluster, for the table. Says on stderr the factor, and line by line what is not imported.

    Args:
        config: Settings file.
        bootstrap_server: Of the cluster; None = as the settings say.
        command_config: client.properties; None = as the settings say.
        scale: One of `SCALES`; None = keep.

    Raises:
        PipelineError: The settings do not say where the cluster is, or it can not be read.
    """
    from pipeline.brokers.native_quotas import NativeQuotas
    from pipeline.cluster.access import ClusterAccess
    from pipeline.settings.loading import load_settings
    from pipeline.tables.quotas.native import imported

    settings = load_settings(config, flags(bootstrap_server, command_config))
    access = ClusterAccess.from_settings(settings.kafka)
    with NativeQuotas(access) as native:
        quotas, brokers = native.describe(), len(native.broker_ids())
    factor = brokers if scale == "brokers" else 1
    found = imported(quotas, factor)
    _tell(f"{access.bootstrap_servers}: brokers {brokers}, entities with quotas {len(quotas)}")
    _tell(f"every bound × {factor} (--scale {scale or SCALES[0]})")
    for line in found.left_out:
        _tell(f"not imported: {line}")
    return list(found.declared)


def tell_others(rows: Iterable[Mapping[str, Any]], declared: "Iterable[DeclaredQuota]") -> None:
    """Say on stderr how many rows of the table are for entities of which the cluster has no quota."""
    named = {(quota.user, quota.client_id) for quota in declared}
    others = sum((row["user"], row["client_id"]) not in named for row in rows)
    if others:
        _tell(f"quotas of other entities, which stay in the table: {others}")


def _tell(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
