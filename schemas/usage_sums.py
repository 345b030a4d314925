"""What a client used of a broker, summed over some span: the columns that `usage` and its roll-ups have in common."""

from pydantic import Field

from schemas.columns import Bytes, Count, DurationNs, Name, Row


class UsageSums(Row):
    """A client, and the sums over its requests. Named first among a row's bases, it follows the columns of the next."""

    broker_id: Name = Field(description='The broker; "" if not known.')
    user: Name = Field(description="The user.")
    client_id: Name = Field(description='The client-id; "" if the client has none.')
    produced_bytes: Bytes | None = Field(description="Sum of produced bytes; null if there was no produce request.")
    fetched_bytes: Bytes | None = Field(description="Sum of fetched bytes; null if there was no fetch request.")
    io_time_ns: DurationNs | None = Field(description="Sum of request handler time; null if it was not measured.")
    network_time_ns: DurationNs | None = Field(description="Sum of network thread time; null if it was not measured.")
    exempt_time_ns: DurationNs | None = Field(description="Sum of the time of exempt requests. It is in no rate.")
    request_count: Count = Field(description="Sum of requests.")
