"""What spark-submit has decided before this process began: the JVM, the master, the jars and where the driver runs."""

import os
from typing import Any, Final

from pyspark import SparkConf, SparkContext

from pipeline.stream.errors import ConnectorsMissing

_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
_CONNECTOR: Final = "org/apache/spark/sql/kafka010/KafkaSourceProvider.class"


def is_submitted() -> bool:
    """Whether spark-submit has started this process, and a JVM before it."""
    return _GATEWAY in os.environ


def runs_in_the_cluster() -> bool:
    """Whether the cluster has chosen the node of this driver: spark-submit with `--deploy-mode cluster`."""
    if not is_submitted():
        return False
    conf = _conf()
    # On Kubernetes the pod of the driver runs spark-submit once more, in client mode.
    return "cluster" in str(conf.get("spark.submit.deployMode", "")) or (
        conf.get("spark.kubernetes.submitInDriver", "") == "true"
    )


def submitted_jars() -> str:
    """The jars that were submitted, with commas; "" for none."""
    return str(_conf().get("spark.jars", "")) if is_submitted() else ""


def refuse_without_connectors() -> None:
    """Refuse a submitted JVM whose class path has no Kafka source: it can not be added any more.

    Raises:
        ConnectorsMissing: It has none.
    """
    if _is_fresh() and _resource(_CONNECTOR) is None:
        raise ConnectorsMissing


def _is_fresh() -> bool:
    """Whether this is a program that was submitted, and not a notebook, whose session runs already."""
    return is_submitted() and SparkContext._active_spark_context is None


def _conf() -> SparkConf:
    _jvm()
    return SparkConf()


def _jvm() -> Any:
    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _resource(name: str) -> Any:
    return _jvm().java.lang.Thread.currentThread().getContextClassLoader().getResource(name)
