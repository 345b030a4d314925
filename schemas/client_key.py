"""The key of a client in records, rows and the gate."""

from typing import NamedTuple


class ClientKey(NamedTuple):
    """Who is throttled. `broker_id` is "" in cluster scope. `client_id` may be ""."""

    broker_id: str
    user: str
    client_id: str
