from copy import copy

import pytest

from quota.errors import InvalidArgument, InvalidEngineSetting, InvalidUsage


@pytest.mark.parametrize("kind", [InvalidUsage, InvalidEngineSetting])
def test_a_refusal_is_rebuilt_from_its_parts_as_between_processes(kind: type[InvalidArgument]) -> None:
    error = copy(kind("user", "be a string column", 3))
    assert (type(error), str(error), error.got) == (kind, "'user' must be a string column; got 3", "3")
