"""The columns that the engine works on: what an annotation such as `Ints` stands for.

Shapes are written in the docstrings: int64[n] is one number for each of n clients, rows or sensors.
"""

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]  # rates, bounds and tokens, in the unit of the bound
Ints = NDArray[np.int64]  # sums (bytes or ns), times in ms, and positions in short lists such as `QUOTA_TYPES`
Ids = NDArray[np.int64]  # numbers of sensors, entities, clients or rows, from 0 on
