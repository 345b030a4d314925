"""The quota types: what is limited. Imports nothing, because every command needs it and `--help` must not wait."""

from typing import Literal

QuotaType = Literal["producer_byte_rate", "consumer_byte_rate", "request_percentage"]
