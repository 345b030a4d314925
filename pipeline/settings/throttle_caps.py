"""The caps of throttles, from the engine's settings."""

from typing import Final

from pipeline.settings.model import EngineSettings
from quota.entity import QUOTA_TYPES
from quota.throttle_time import ThrottleCaps

_UNCAPPED_THROTTLE_MS: Final = 3_600_000


def throttle_caps(engine: EngineSettings) -> ThrottleCaps:
    """The cap of each quota type."""
    return ThrottleCaps(
        producer_byte_rate=engine.producer_byte_rate_cap,
        consumer_byte_rate=engine.consumer_byte_rate_cap,
        request_percentage=engine.request_percentage_cap,
    )


def longest_throttle_ms(engine: EngineSettings) -> int:
    """The longest slice that these caps allow for any quota type. A type without a cap counts as one hour."""
    caps = throttle_caps(engine)
    slices_ms = (caps.cap_ms(name, engine.rate_span_ms, engine.sample_window_ms) for name in QUOTA_TYPES)
    return max(_UNCAPPED_THROTTLE_MS if slice_ms is None else slice_ms for slice_ms in slices_ms)
