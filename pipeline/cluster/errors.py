"""What can go wrong between this process and a cluster.

PipelineError
├── ClusterUnreachable       no broker answers, or not in the way asked for
├── SignInRefused            the broker answers and refuses the credentials
├── TokenRefused             the OAuth token endpoint or file gives no token
├── PermissionMissing        the broker knows the client and refuses what it asks for
├── ClientPropertiesInvalid  a client.properties file cannot be used
├── TopicMissing             a topic of the pipeline does not exist
├── TransactionUndecided     a transaction failed, or nobody knows: the mark will tell
├── TransactionFenced        another writer has taken over, or a transaction was open for too long
└── MessageTooLarge          a message is larger than its topic takes
"""

from collections.abc import Sequence
from typing import Literal

from pipeline.cluster.acls import Acl, grant_commands
from pipeline.command_line import command_text
from pipeline.errors import PipelineError


class ClusterUnreachable(PipelineError):
    """No broker answers at the address.

    Attributes:
        bootstrap_servers: The address tried.
        cause: What the network or the broker answered.
    """

    exit_code = 6

    def __init__(self, bootstrap_servers: str, cause: str, fix: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.cause = cause
        super().__init__(f"no Kafka broker answers at {bootstrap_servers}: {cause}", fix)


class SignInRefused(PipelineError):
    """A broker answers and refuses the credentials.

    Attributes:
        bootstrap_servers: The address tried.
        user: The user; "" if not known.
        cause: The broker's answer.
    """

    exit_code = 6

    def __init__(self, bootstrap_servers: str, user: str, cause: str, fix: str = "") -> None:
        self.bootstrap_servers = bootstrap_servers
        self.user = user
        self.cause = cause
        who = f"user '{user}'" if user else "the client"
        super().__init__(
            f"the Kafka broker at {bootstrap_servers} refuses {who}: {cause}",
            fix or "check sasl.mechanism, user and password of the client properties",
        )


class TokenRefused(PipelineError):
    """There is no OAuth token to sign in with.

    Attributes:
        url: The token endpoint, or the file.
        cause: Its answer; never a secret.
    """

    exit_code = 6

    def __init__(self, url: str, cause: str) -> None:
        self.url = url
        self.cause = cause
        super().__init__(
            f"no OAuth token from {url}: it {cause}",
            "check sasl.oauthbearer.token.endpoint.url, clientId, clientSecret and scope of the client properties",
        )


class PermissionMissing(PipelineError):
    """A broker knows the client and refuses what it asks for.

    Attributes:
        acls: All rights that are known to be missing.
        principal: Who needs them.
    """

    exit_code = 6

    def __init__(self, acls: Sequence[Acl], principal: str, bootstrap_servers: str) -> None:
        self.acls = tuple(acls)
        self.principal = principal
        super().__init__(
            f"'{principal}' must be allowed {', '.join(map(str, acls))}; the Kafka broker at {bootstrap_servers} "
            "refuses it",
            " && ".join(grant_commands(acls, principal, bootstrap_servers)),
        )


class ClientPropertiesInvalid(PipelineError):
    """Client properties that cannot be used, all mistakes at once.

    Attributes:
        source: The file, or where else they come from.
        mistakes: One text per mistake: `'key' must …; got …`.
    """

    exit_code = 2

    def __init__(self, source: str, mistakes: Sequence[str]) -> None:
        self.source = source
        self.mistakes = tuple(mistakes)
        super().__init__(f"{source}: {'; '.join(mistakes)}", f"correct these entries in {source}")


class TopicMissing(PipelineError):
    """A topic of the pipeline does not exist.

    Attributes:
        topic: Its name.
        bootstrap_servers: The cluster.
        purpose: Which of the three it is.
    """

    def __init__(self, topic: str, bootstrap_servers: str, purpose: Literal["usage", "throttle", "marker"]) -> None:
        self.topic = topic
        self.bootstrap_servers = bootstrap_servers
        address = "--bootstrap-server", bootstrap_servers
        super().__init__(
            f"topic '{topic}' does not exist at {bootstrap_servers}",
            command_text("topics", "create", *address, f"--{purpose}-topic", topic, about="cluster"),
        )


class TransactionUndecided(PipelineError):
    """The outcome of a transaction is not known, or it failed.

    Attributes:
        detail: What the client library said.
    """

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(
            f"a transaction must commit; got {detail}", "nothing needs doing: it is tried again when the broker answers"
        )


class TransactionFenced(PipelineError):
    """Another writer of the same transactional id has taken over, or the broker has aborted a transaction for its age.

    Attributes:
        identity: The transactional id.
    """

    exit_code = 4

    def __init__(self, identity: str) -> None:
        self.identity = identity
        super().__init__(
            f"transactional id '{identity}' must have one writer; got another one, or a transaction that was open for "
            "longer than its time-out",
            "stop one of the two writers",
        )


class MessageTooLarge(PipelineError):
    """A message of a transaction is larger than the topic, or the producer, takes.

    Attributes:
        detail: What the client library said.
    """

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(
            f"a message must be no larger than its topic takes; got {detail}", "raise max.message.bytes of the topic"
        )
