"""What `kquota topics check --acls` prints: the rights of each role, as the commands that grant them."""

import sys
from collections.abc import Sequence
from typing import Final

from pipeline.cli.output import is_table, print_rows
from pipeline.cluster.acls import ROLES, Names, acls_of, grant_commands
from pipeline.errors import PipelineError


class UnknownRole(PipelineError):
    """`--role` names an unknown role."""

    exit_code = 2

    def __init__(self, given: str) -> None:
        super().__init__(
            f"'--role' must be one of {', '.join(ROLES)}; got {given!r}", f"for example --role {next(iter(ROLES))}"
        )


_PRINCIPAL: Final = "User:kquota-{role}"


def print_acls(
    roles: Sequence[str] | None, principal: str | None, names: Names, bootstrap_servers: str, output: str
) -> None:
    """Print the kafka-acls commands, or one row per ACL as JSON or YAML.

    Args:
        roles: The roles to print; None or empty prints all.
        principal: Who gets the rights; None = `User:kquota-<role>` for each role.
        names: Names of the topics and of the job.
        bootstrap_servers: Written into the commands.
        output: One of `pipeline.cli.output.FORMATS`; a table is the commands.

    Raises:
        UnknownRole: There is no role of this name.
    """
    unknown = [role for role in roles or () if role not in ROLES]
    if unknown:
        raise UnknownRole(unknown[0])
    rows = []
    for role, purpose in ROLES.items():
        if roles and role not in roles:
            continue
        who = principal or _PRINCIPAL.format(role=role)
        acls = acls_of(role, names)
        if is_table(output):
            needs = "" if acls else "; as the settings are, it needs no right"
            lines = [f"# {role}: {purpose}{needs}", *grant_commands(acls, who, bootstrap_servers)]
            sys.stdout.write("".join(f"{line}\n" for line in lines))
        rows += [
            {
                "role": role,
                "principal": who,
                "operation": acl.operation,
                "resource": acl.resource,
                "name": acl.name,
                "pattern": acl.pattern,
                "command": grant_commands([acl], who, bootstrap_servers)[0],
            }
            for acl in acls
        ]
    if not is_table(output):
        print_rows(rows, output)
