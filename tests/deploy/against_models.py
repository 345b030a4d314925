"""`against_models.py bundle|kubeflow`: do the models of Databricks or Kubeflow take all of an object, JSON on stdin?

Ends with 0 if they do, else with 1 and what they refuse or do not know on standard output. It is run in the environment
of `make deploy-check`.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any


def of_bundle(resources: dict[str, Any]) -> Iterator[str]:
    from databricks.bundles.dashboards import Dashboard  # noqa: PLC0415
    from databricks.bundles.jobs import Job  # noqa: PLC0415

    models = {"jobs": Job, "dashboards": Dashboard}
    for kind, named in resources.items():
        for name, resource in named.items():
            try:
                models[kind].from_dict(resource)
            except ValueError as error:
                yield f"{kind}.{name}: {error}"


def of_kubeflow(application: dict[str, Any]) -> Iterator[str]:
    """The mistakes in a SparkApplication. The models ignore what they do not know, so what they made is compared."""
    from kubeflow_spark_api.models import SparkV1beta2SparkApplication  # noqa: PLC0415

    try:
        taken = SparkV1beta2SparkApplication.from_dict(application).to_dict()
    except ValueError as error:
        yield str(error)
    else:
        yield from _lost(application, taken)


def _lost(given: Any, taken: Any, at: str = "") -> Iterator[str]:
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(taken, dict) or key not in taken:
                yield f"{at}.{key}: is not known"
            else:
                yield from _lost(value, taken[key], f"{at}.{key}")
    elif isinstance(given, list):
        for index, (one, other) in enumerate(zip(given, taken, strict=True)):
            yield from _lost(one, other, f"{at}[{index}]")
    elif given != taken:
        yield f"{at}: {given!r} is taken as {taken!r}"


if __name__ == "__main__":
    mistakes = list({"bundle": of_bundle, "kubeflow": of_kubeflow}[sys.argv[1]](json.load(sys.stdin)))
    sys.stdout.write("".join(f"{line}\n" for line in mistakes))
    sys.exit(1 if mistakes else 0)
