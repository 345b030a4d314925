"""All planted defects: of each room a module. Those that tests/faults/mutations.py seeds are listed with them."""

from typing import Final

from tests.mutations import (
    brokers_defects,
    cli_defects,
    cluster_defects,
    gate_defects,
    job_defects,
    purgatory_defects,
    quota_defects,
    schemas_defects,
    stream_defects,
    tables_defects,
    throttle_defects,
)
from tests.mutations.planting import Defect

_ROOMS: Final = (
    quota_defects,
    purgatory_defects,
    schemas_defects,
    throttle_defects,
    stream_defects,
    tables_defects,
    brokers_defects,
    cluster_defects,
    gate_defects,
    job_defects,
    cli_defects,
)
DEFECTS: Final[tuple[Defect, ...]] = tuple(defect for room in _ROOMS for defect in room.DEFECTS)
