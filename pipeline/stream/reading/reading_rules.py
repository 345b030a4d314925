"""The settings that reading usage messages needs. They are constants of a job."""

from dataclasses import dataclass
from typing import Self

from pipeline.settings.model import Settings
from quota.shares import ALL_USERS, Share


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """The settings that reading usage messages needs.

    They are literals in the query, so each other value makes Spark generate and compile the query's code again.

    Attributes:
        sample_window_ms: Span of a sample window, > 0; windows start at multiples of it since the epoch.
        max_event_age_ms: An event may be dated this long before its record's append time; an older one is refused.
        share: Whose usage counts. Of other users only the number of events and the newest event time are kept.
    """

    sample_window_ms: int
    max_event_age_ms: int
    share: Share = ALL_USERS

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The rules of a job."""
        return cls(settings.engine.sample_window_ms, settings.stream.max_event_age_ms, settings.share)
