"""Resources of a Databricks bundle as JSON on standard input: do the models of databricks-bundles take all of them?

Ends with 0 if they do, else with 1 and what they refuse on standard output. It is run in the environment of
`make deploy-check`.
"""

import json
import sys

from databricks.bundles.dashboards import Dashboard
from databricks.bundles.jobs import Job

MODELS = {"jobs": Job, "dashboards": Dashboard}


def main() -> int:
    """The command line; see above."""
    mistakes = []
    for kind, named in json.load(sys.stdin).items():
        for name, resource in named.items():
            try:
                MODELS[kind].from_dict(resource)
            except ValueError as error:
                mistakes.append(f"{kind}.{name}: {error}")
    sys.stdout.write("".join(f"{line}\n" for line in mistakes))
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
