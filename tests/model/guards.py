"""What the code does so that the outbox keeps its promise. The model can leave out each of them."""

from typing import Final, NamedTuple


class Guard(NamedTuple):
    """What the code does, where, and the planted defect of `tests/mutations` that takes it away; "" without one.

    `where` is the name of a function as the planted defects have it.
    """

    does: str
    where: str
    defect: str = ""


GUARDS: Final = {
    "compare": Guard(
        "an append compares the epoch",
        "checked_epoch",
        "a driver that another one has followed writes on",
    ),
    "conditional": Guard("a commit fails if another one came first", "DeltaRsWriter._committed"),
    "taken": Guard(
        "an epoch that is taken is refused",
        "refuse_taken_epoch",
        "two drivers may take one epoch",
    ),
    "raise": Guard("the epoch is raised before the outbox is read", "pipeline.job.job_run:take_over"),
    "skip": Guard(
        "a batch that is stored is skipped",
        "is_written",
        "a batch that is written again is stored twice",
    ),
    "own": Guard(
        "an append that failed and was made counts as made",
        "DeltaRsWriter.append",
        "an append that failed and was made all the same is forgotten",
    ),
    "unknown": Guard(
        "after an append with an unknown outcome no other one follows",
        "Publisher.write",
        "after an append with an unknown outcome the publisher goes on",
    ),
    "store": Guard("records are stored before they are published", "Publisher.write"),
    "rest": Guard(
        "stored records past the marker are published first",
        "Publisher._missing_from",
        "a start leaves behind what is stored and not published",
    ),
    "fence": Guard("a new producer comes before the marker is read", "MarkedTransactions._opened"),
    "together": Guard("the marker is in the transaction of its records", "MarkedTransactions._move"),
    "anew": Guard(
        "after a lost answer the marker is read anew",
        "Publisher._transact",
        "records of a transaction that failed count as published",
    ),
    "renew": Guard("after a lost answer a new producer goes on", "MarkedTransactions.commit"),
    "twice": Guard(
        "after a request that was sent twice a new producer goes on",
        "MarkedTransactions.commit",
        "a late end of a transaction ends the next one before its mark",
    ),
    "same": Guard(
        "a new producer goes on at the same marker only",
        "MarkedTransactions._replace_producer",
        "a new producer goes on after another writer has moved the mark",
    ),
    "end": Guard(
        "without a marker the highest number on the topic counts",
        "Publisher._missing_from",
        "without a marker all stored records are published again",
    ),
    "leave": Guard(
        "a driver that has lost the tables leaves the topic",
        "Publisher._refuse_newer_driver",
        "a publisher goes on although another driver has the tables",
    ),
}
