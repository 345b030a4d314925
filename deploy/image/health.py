"""Whether the program of this container answers; ends with 0 if it does, else with 1 and one line that says why.

    python health.py [URL [METRIC]]

URL is what `HEALTH_URL` names, or the metrics of the job. With METRIC the answer must have it, above 0: a job whose
streaming query has started has `kquota_query_starts_total` above 0.
"""

import os
import sys
import urllib.request

_METRICS_OF_THE_JOB = "http://127.0.0.1:9464/metrics"
_PATIENCE_SECONDS = 4


def trouble(url: str, metric: str | None = None) -> str | None:
    """What is wrong, in one line; None if nothing is."""
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE_SECONDS) as answer:  # noqa: S310 - the container's own address
            text = answer.read().decode()
    except OSError as error:
        return f"{url}: {error}"
    if metric is None:
        return None
    values = [line.split()[-1] for line in text.splitlines() if line.split(" ")[0].split("{")[0] == metric]
    return None if any(float(value) > 0 for value in values) else f"{url}: {metric} is {', '.join(values) or 'missing'}"


def main(arguments: list[str]) -> int:
    """The command line; see above."""
    url, *metric = arguments or [os.environ.get("HEALTH_URL", _METRICS_OF_THE_JOB)]
    found = trouble(url, *metric[:1])
    if found is not None:
        sys.stderr.write(f"{found}\n")
    return 0 if found is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
