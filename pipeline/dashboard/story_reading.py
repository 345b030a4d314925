"""The story of one decision for the page: the same words as `kquota throttles explain`."""

from typing import Any

from pipeline.dashboard.query import SEE, Query
from pipeline.dashboard.reader import TablesReader
from pipeline.errors import printable
from pipeline.settings.model import Settings
from pipeline.story.decision import words_of
from pipeline.tables.brokers.enforced import enforced_for
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.throttles.history import decision_with_id, newest_decision, origin_of_bound, story_of
from pipeline.tables.throttles.unpublished import why_unpublished
from pipeline.web import QueryRefused


def explained(reader: TablesReader, query: Query, settings: Settings) -> dict[str, Any]:
    """Why a client was throttled: by the beginning of a decision's id, or the newest decision of a client.

    Raises:
        QueryRefused: Neither is given.
        NothingMatches, SeveralMatch: As `throttles explain`.
    """
    root = reader.root
    if query.decision_id:
        decision = decision_with_id(root, query.decision_id)
    elif query.user is not None:
        decision = newest_decision(root, query.user, query.client_id)
    else:
        raise QueryRefused(["'decision_id' or 'user' must be given; got none"], SEE)
    story = story_of(root, decision)
    quotas = QuotaTable(root)
    settings = settings.model_copy(update={"engine": reader.engine_settings()})
    max_age_ms = settings.stream.max_decision_age_ms
    unpublished = None if story.events else why_unpublished(root, quotas, story.decision, max_age_ms)
    on_brokers = enforced_for(root, decision["user"], decision["client_id"], [decision["quota_type"]])
    words = words_of(story, settings, origin_of_bound(quotas, story.decision), unpublished, on_brokers)
    return {
        "decision_id": decision["decision_id"],
        "user": decision["user"],
        "client_id": decision["client_id"],
        "quota_type": decision["quota_type"],
        "evaluated_at_ms": decision["evaluated_at_ms"],
        "title": printable(words.title),
        "facts": [[name, printable(text)] for name, text in words.facts],
        "published": [printable(line.strip()) for line in words.published],
    }
