"""Who edits quotas, from where, with which version of the tool: written into every edit's commit."""

import getpass
import socket
from importlib.metadata import PackageNotFoundError, version

from pipeline.tables.quotas.table import EditAudit


def local_audit(reason: str) -> EditAudit:
    """The audit of an edit that the current user makes on this machine with this version of kquota."""
    try:
        tool_version = version("kafka-quota-pipeline")
    except PackageNotFoundError:
        tool_version = "unknown"
    return EditAudit(actor=getpass.getuser(), host=socket.gethostname(), tool_version=tool_version, reason=reason)
