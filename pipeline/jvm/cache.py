"""The folder of this machine for files that are fetched once and used by every checkout."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """KQUOTA_CACHE if set, else `~/.cache/kquota`. May not exist yet."""
    return Path(environ.get("KQUOTA_CACHE") or "~/.cache/kquota").expanduser().absolute()
