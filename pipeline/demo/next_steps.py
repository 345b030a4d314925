"""The commands that the demo proposes: each works on the demo's data, in the shell that shows it."""

from pathlib import Path

from pipeline.command_line import command_text, path_text


def while_it_runs() -> list[str]:
    """Three commands for another terminal, once a throttle is recorded."""
    return [command_text("status"), command_text("throttles", "list", "--all"), command_text("quotas", "describe")]


def at_the_end(decision_id: str | None, batches: int, candidate: Path) -> list[str]:
    """Three commands for when the demo has ended.

    Args:
        decision_id: A decision that was published in this run, or the beginning of its id; None if there was none.
        batches: How many micro-batches this run has recorded.
        candidate: The file with quotas to try.
    """
    what_if = command_text("what-if", "--quotas", path_text(candidate), "--from", "usage", "--since", "1h")
    if decision_id is not None:
        return [command_text("throttles", "explain", decision_id), command_text("throttles", "list", "--all"), what_if]
    first = [command_text("status"), command_text("quotas", "describe")]
    return [*first, what_if if batches else command_text("quotas", "history")]
