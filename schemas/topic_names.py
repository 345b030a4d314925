"""The names of the three topics, where the settings give no others."""

from typing import Final

USAGE_TOPIC: Final = "quota.usage.v1"
THROTTLE_TOPIC: Final = "quota.throttle.v1"
MARKER_TOPIC: Final = "quota.marker.v1"
