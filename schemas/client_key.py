"""The name of a client, as records, rows and the gate know it."""

from typing import NamedTuple


class ClientKey(NamedTuple):
    """Who is throttled. `broker_id` is "" in cluster scope; `client_id` may be ""."""

    broker_id: str
    user: str
    client_id: str
