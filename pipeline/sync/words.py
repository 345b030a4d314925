"""Changes and drifts as people read them, in one line each."""

from quota.broker_entries import EntryKey
from quota.broker_writes import WORDS, Change, Drift, DriftKind
from quota.entity import label
from quota.units import rate_text


def change_line(change: Change) -> str:
    """`user-principal 'alice' producer_byte_rate 1.0 MB/s → 350.0 kB/s of T 1.0 MB/s: why`."""
    key = change.key
    of_bound = "" if change.bound in {None, change.new} else f" of T {value_text(key, change.bound)}"
    old, new = value_text(key, change.old), value_text(key, change.new)
    return f"{key_text(key)} {old} → {new}{of_bound}: {WORDS[change.cause]}"


def drift_line(drift: Drift) -> str:
    """What stands on the brokers in place of what kquota wants there."""
    theirs, ours, wanted = (value_text(drift.key, value) for value in (drift.theirs, drift.ours, drift.wanted))
    wrote = "kquota did not write it" if drift.kind is DriftKind.FOREIGN else f"kquota wrote {ours}"
    return f"{key_text(drift.key)} is {theirs} on the brokers: {wrote}, wants {wanted}, and leaves it alone"


def key_text(key: EntryKey) -> str:
    """The entity as Kafka's tools write it, and the quota type."""
    return f"{label(key.user, key.client_id)} {key.quota_type}"


def value_text(key: EntryKey, value: float | None) -> str:
    """A value with its unit; `none` for none."""
    return "none" if value is None else rate_text(key.quota_type, value)
