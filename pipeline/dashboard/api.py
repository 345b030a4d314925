"""What each path of the API answers: rows of the tables, through the views."""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.dashboard.client_reading import client_document
from pipeline.dashboard.editing import Editing
from pipeline.dashboard.feed import Feed
from pipeline.dashboard.now_view import event_row, throttled_row
from pipeline.dashboard.pipeline_reading import dead_letters, pipeline_document
from pipeline.dashboard.query import Query
from pipeline.dashboard.quotas_reading import quota_history, quotas_document
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.state import State
from pipeline.dashboard.story_reading import explained
from pipeline.errors import PipelineError
from pipeline.settings.model import Settings


class NotReady(PipelineError):
    """The tables were not looked at yet."""

    exit_code = 6

    def __init__(self) -> None:
        super().__init__("'tables' must have been read once; got none so far", "ask again in a second")


class Answers:
    """The answers of the API; for several threads.

    Args:
        reader: The tables.
        feed: The newest state.
        settings: Of the job, for the words of `throttles explain`.
        may_write: Whether quotas may be edited.

    Attributes:
        editing: The edits.
    """

    def __init__(self, reader: TablesReader, feed: Feed, settings: Settings, may_write: bool = False) -> None:
        self.editing = Editing(reader.root, may_write)
        self._reader = reader
        self._settings = settings
        self._feed = feed
        reader.recent.keep()

    def by_path(self) -> dict[str, Callable[[Query], Any]]:
        """What answers, by path."""
        return {
            "/api/v1/summary": lambda _query: self._state().summary(),
            "/api/v1/throttles": self._throttles,
            "/api/v1/events": self._events,
            "/api/v1/client": lambda query: client_document(self._reader, self._state(), query),
            "/api/v1/explain": lambda query: explained(self._reader, query, self._settings),
            "/api/v1/quotas": self._quotas,
            "/api/v1/quotas/history": lambda query: quota_history(self._reader, query),
            "/api/v1/pipeline": lambda _query: pipeline_document(self._reader, self._state()),
            "/api/v1/dead_letters": lambda query: dead_letters(self._reader, query),
        }

    def by_posted_path(self) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        """What takes an edit, by path; but for a what-if, which takes long (`editing.what_if`)."""
        return {
            "/api/v1/quotas/plan": self.editing.plan,
            "/api/v1/quotas/edit": self.editing.write,
        }

    def _throttles(self, query: Query) -> dict[str, Any]:
        state = self._state()
        rows = [throttled_row(one, state.levels) for one in state.running]
        wanted = [row for row in rows if _is_wanted(row, query) and row["since_ms"] >= (query.since_ms or 0)]
        return {"now_ms": state.now_ms, "throttles": wanted[: query.limit], "total": len(wanted)}

    def _quotas(self, query: Query) -> dict[str, Any]:
        return {**quotas_document(self._reader, self._state(), query), "may_write": self.editing.may_write}

    def _events(self, query: Query) -> dict[str, Any]:
        state = self._state()
        rows = [event_row(row, state.levels) for row in state.recent]
        wanted = [row for row in rows if _is_wanted(row, query) and row["at_ms"] >= (query.since_ms or 0)]
        return {"now_ms": state.now_ms, "events": wanted[: query.limit]}

    def _state(self) -> State:
        state = self._feed.state
        if state is None:
            raise NotReady
        return state


def _is_wanted(row: dict[str, Any], query: Query) -> bool:
    wanted = (("user", query.user), ("client_id", query.client_id), ("owner", query.owner))
    return all(value is None or row.get(name) == value for name, value in wanted)
