"""A SparkApplication as JSON on standard input: do the models of kubeflow-spark-api take all of it?

Ends with 0 if they do, else with 1 and what they refuse or do not know on standard output. It is run in the environment
of `make deploy-check`. The models ignore a field that they do not know, so what they made of it is compared with it.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from kubeflow_spark_api.models import SparkV1beta2SparkApplication


def lost(given: Any, taken: Any, at: str = "") -> Iterator[str]:
    """The paths of what is in `given` and not in `taken`."""
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(taken, dict) or key not in taken:
                yield f"{at}.{key}: is not known"
            else:
                yield from lost(value, taken[key], f"{at}.{key}")
    elif isinstance(given, list):
        for index, (one, other) in enumerate(zip(given, taken, strict=True)):
            yield from lost(one, other, f"{at}[{index}]")
    elif given != taken:
        yield f"{at}: {given!r} is taken as {taken!r}"


def main() -> int:
    """The command line; see above."""
    given = json.load(sys.stdin)
    try:
        mistakes = list(lost(given, SparkV1beta2SparkApplication.from_dict(given).to_dict()))
    except ValueError as error:
        mistakes = [str(error)]
    sys.stdout.write("".join(f"{line}\n" for line in mistakes))
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
