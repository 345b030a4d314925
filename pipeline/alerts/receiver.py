"""Whom messages go to: the port."""

from typing import Literal, NamedTuple, Protocol

from pipeline.alerts.payload import Message


class Answer(NamedTuple):
    """What became of a message.

    Attributes:
        verdict: taken: the receiver has it. later: it is to be sent again. never: this message would be refused again.
        told: What the receiver said, in one printable line without secrets.
    """

    verdict: Literal["taken", "later", "never"]
    told: str


class Receiver(Protocol):
    """One receiver. Used by one thread at a time."""

    @property
    def name(self) -> str:
        """As in the settings."""
        ...

    @property
    def place(self) -> str:
        """Where it is, for people; without secrets."""
        ...

    def send(self, message: Message) -> Answer:
        """Bring a message; returns within about the time-out of the settings, and raises nothing."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
