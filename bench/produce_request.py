"""A produce request as it is on the wire, for loads that must cost less than a client library."""

from typing import Any, Final

from kafka.protocol.producer import ProduceRequest

_VERSION: Final = 9


def produce_request(topic: str, partition: int, records: bytes) -> bytes:
    """The request with its length and header; acks=1, of the client-id `load`.

    Args:
        topic: Its name.
        partition: Number of the partition.
        records: One record batch.
    """
    data = ProduceRequest.TopicProduceData
    part = data.PartitionProduceData(index=partition, records=records)
    request: Any = ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=30_000,
        topic_data=[data(name=topic, partition_data=[part])],
        version=_VERSION,
    )
    request.with_header(client_id="load")
    return bytes(request.encode(header=True, framed=True))
