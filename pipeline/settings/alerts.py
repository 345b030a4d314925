"""Whom `kquota alerts` tells, and of what."""

from pathlib import Path

from pydantic import Field, SecretStr

from pipeline.settings.branch import Branch


class AlertsSettings(Branch):
    """What `kquota alerts` looks for, and whom it tells."""

    webhooks: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="name of a receiver -> its http or https URL, all or part of it as ${env:NAME} or ${file:/path}",
    )
    signing_keys: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="name of a webhook -> ${env:NAME} or ${file:/path} of the key its messages are signed with",
    )
    topic: str | None = Field(None, min_length=1, description="a Kafka topic that is told too; null: none")
    external_url: str | None = Field(
        None, pattern=r"^https?://", description="address of the dashboard, for links in messages"
    )
    near_bound_percent: int = Field(80, ge=1, le=1_000, description="KquotaNearBound: a sensor uses so much of T")
    at_bound_percent: int = Field(95, ge=1, le=1_000, description="KquotaAtBound: a sensor uses so much of T")
    hysteresis_percent: int = Field(5, ge=0, le=100, description="both end only when it uses so much less")
    pending_ms: int = Field(30_000, ge=0, description="both begin only when it has been so for so long")
    stalled_after_ms: int = Field(60_000, ge=1_000, description="KquotaStalled: no micro-batch for longer")
    dead_letters_ms: int = Field(300_000, ge=1_000, description="KquotaDeadLetters: refused messages in such a span")
    resolve_after_ms: int = Field(60_000, ge=0, description="an alert ends when it has not been so for so long")
    repeat_ms: int = Field(14_400_000, ge=1_000, description="an alert that goes on is told again so often")
    look_every_ms: int = Field(2_000, ge=100, description="how often the tables are looked at")
    timeout_ms: int = Field(10_000, ge=100, description="how long a receiver may take to answer")
    longest_retry_ms: int = Field(60_000, ge=100, description="longest rest before a message is sent again")
    queue_messages: int = Field(
        1_000, ge=1, description="most messages that wait for one receiver; then the oldest is dropped and counted"
    )
    state_file: Path | None = Field(None, description="null: <run_dir>/<job>.alerts.json")
