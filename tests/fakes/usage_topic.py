"""A usage topic in memory. It fulfils the contract of `pipeline.meter.usage_topic.UsageWriter`."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from pipeline.cluster.acls import METER_IDENTITY
from pipeline.cluster.transactions import Mark
from pipeline.errors import ClusterUnreachable, TransactionFenced, TransactionUndecided
from pipeline.meter.usage_topic import Message

Failure = Literal["lost", "late", "too old"]


class UsageBroker:
    """What several meters share: committed messages, the mark, and who may write."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.mark: Mark | None = None
        self.epoch = 0
        self.transactions = 0
        self.is_away = False

    def events(self) -> list[dict[str, Any]]:
        return [event for message in self.messages for event in json.loads(message.value)]

    def client_ids(self) -> list[str]:
        return [event["client_id"] for event in self.events()]


class MemoryUsageTopic:
    """One writer. `fail_next` is what becomes of its next transaction.

    lost: it is aborted; late: it is committed, and the answer is lost; too old: the broker has aborted it for its age.
    """

    partition_count = 1

    def __init__(self, broker: UsageBroker) -> None:
        self._broker = broker
        self._epoch = -1
        self.fail_next: Failure | None = None
        self.opened = 0

    def open(self) -> Mark | None:
        self._refuse_while_away()
        self.opened += 1
        self._broker.epoch += 1
        self._epoch = self._broker.epoch
        return self._broker.mark

    def committed(self) -> Mark | None:
        self._refuse_while_away()
        return self._broker.mark

    def store(self, messages: Sequence[Message], mark: Mark) -> None:
        failure, self.fail_next = self.fail_next, None
        if failure == "too old":
            self._broker.epoch += 1
        if self._epoch != self._broker.epoch:
            raise TransactionFenced(identity=METER_IDENTITY)
        if self._broker.is_away or failure == "lost":
            self._epoch = -1
            detail = "the transaction was lost"
            raise TransactionUndecided(detail)
        self._broker.messages += messages
        self._broker.mark = mark
        self._broker.transactions += 1
        if failure == "late":
            self._epoch = -1
            detail = "the answer was lost"
            raise TransactionUndecided(detail)

    def close(self) -> None:
        self._epoch = -1

    def _refuse_while_away(self) -> None:
        if self._broker.is_away:
            raise ClusterUnreachable(bootstrap_servers="memory", cause="switched off", fix="switch it on")
