"""What can go wrong between the driver and the throttle topic.

PipelineError
├── PublishUndecided    a transaction failed, or nobody knows: the marker will tell
├── OutboxUndecided     an append failed, or nobody knows: the next start reads what is stored
├── RecordTooLarge      a record is larger than the topic takes
├── TopicOfAnotherJob   the throttle topic holds another job's records
└── PublisherFenced     another driver of the same job has taken over; this one must stop
"""

from pipeline.command_line import command_text
from pipeline.errors import PipelineError
from schemas.names import THROTTLE_TOPIC


class PublishUndecided(PipelineError):
    """The outcome of a transaction on the throttle topic is not known, or it failed."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(
            f"a transaction on the throttle topic must commit; got {detail}",
            "nothing needs doing: stored records are published again when the broker answers",
        )


class OutboxUndecided(PipelineError):
    """An append to the outbox raised before, so the numbers it carried may be taken or free.

    Attributes:
        publish_seq: The first of them.
    """

    def __init__(self, publish_seq: int) -> None:
        self.publish_seq = publish_seq
        super().__init__(
            f"the outbox must tell what became of publish_seq {publish_seq} before more is written; got an append "
            f"that failed",
            "nothing needs doing: the restart reads what is stored and goes on after it",
        )


class PublisherFenced(PipelineError):
    """Another driver with the same job name has taken the throttle topic over."""

    exit_code = 4

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(
            f"'job' must name one running driver; got a second one for {job!r}, which has fenced this one",
            "stop one of the two, or give it another job name and tables of its own",
        )


class RecordTooLarge(PipelineError):
    """A record among those of a transaction is larger than the topic, or the producer, takes."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(
            f"a throttle record must be no larger than the topic takes; got {detail}",
            "nothing needs doing: the record is passed over; a larger max.message.bytes would let it through",
        )


class TopicOfAnotherJob(PipelineError):
    """The throttle topic holds records of a job with another name.

    Attributes:
        job: This job.
        owner: The job whose records are there.
    """

    exit_code = 4

    def __init__(self, job: str, owner: str) -> None:
        self.job = job
        self.owner = owner
        own = f"{THROTTLE_TOPIC}.{job}"
        super().__init__(
            f"'kafka.throttle_topic' must belong to one job; job {job!r} got a topic with records of job {owner!r}",
            f"give this job a topic of its own: set KQUOTA_KAFKA__THROTTLE_TOPIC={own}, and create it: "
            f"{command_text('topics', 'create', '--throttle-topic', own, about='cluster')}",
        )
