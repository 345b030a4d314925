#!/bin/bash
# The image's first process: a command of kquota, or what Spark on Kubernetes asks of an image, `driver` and `executor`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

spark_environment() {
  JAVA_HOME=$(cat "$here/java-home")
  SPARK_HOME=$("$here/venv/bin/python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
  export JAVA_HOME SPARK_HOME PYSPARK_PYTHON="$here/venv/bin/python"
}

case "${1:-}" in
  driver)
    shift
    spark_environment
    # Spark's own settings of its log write some dozen lines for each micro-batch.
    log=$("$here/venv/bin/python" -c 'import pipeline.stream as stream; print(stream.__path__[0])')/log4j2.properties
    exec "$SPARK_HOME/bin/spark-submit" \
      --conf "spark.driver.defaultJavaOptions=-Dlog4j2.configurationFile=file://$log" \
      --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS:-127.0.0.1}" \
      --conf "spark.driver.extraClassPath=$here/connectors/*" \
      --deploy-mode client "$@"
    ;;
  executor)
    shift
    spark_environment
    options=()
    for name in $(compgen -v SPARK_JAVA_OPT_ | sort -t_ -k4 -n); do options+=("${!name}"); done
    exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:$here/connectors/*:$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec "$here/venv/bin/kquota" "$@"
    ;;
esac
