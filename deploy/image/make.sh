#!/bin/sh
# Makes the folder that the image holds: a virtual environment with the locked packages, Java among them, and the jars
# of the lock. The Dockerfile runs it; it needs no root, and runs on any machine with Python 3.11.
#
#   deploy/image/make.sh FOLDER
#
# If /run/secrets/jars.env is there, it is read first: it may set DEFAULT_ARTIFACT_REPOSITORY, for a mirror of jars.
set -eu
folder="$1"
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
if [ -s /run/secrets/jars.env ]; then
  set -a
  . /run/secrets/jars.env
  set +a
fi

mkdir -p "$folder"
"${PYTHON:-python3}" -m venv "$folder/venv"
pip="$folder/venv/bin/python -m pip --disable-pip-version-check --no-cache-dir"
$pip install --quiet --no-deps --require-hashes -r deploy/image/requirements.lock
# The cache is read only in the image, so all that is ever written there is made now: jars, and the shim of Java.
KQUOTA_CACHE="$folder/cache"
export KQUOTA_CACHE
"$folder/venv/bin/python" -m deploy.reporter # the package that is installed next carries the jar
$pip install --quiet --no-deps --no-build-isolation .

"$folder/venv/bin/kquota" jars fetch --with s3
# A first session of Spark, whose JVM writes an archive of its classes when it ends: later ones start in half the time.
"$folder/venv/bin/python" - <<'END'
from threading import Event

from pyspark import SparkContext

from pipeline.settings.model import Settings
from pipeline.stream.session import SparkStarter

with SparkStarter(Settings()) as starter:
    starter.session_unless(Event())
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
END
# What executors and spark-submit need in addition to Spark's own jars, in one folder.
mkdir -p "$folder/connectors"
"$folder/venv/bin/python" -c 'from pipeline.jvm.jars import spark_jars; print(*spark_jars("s3"), sep="\n")' |
  while read -r jar; do ln -sf "$jar" "$folder/connectors/$(basename "$jar")"; done
"$folder/venv/bin/python" -c 'from pipeline.jvm.java import find_java; print(find_java().home)' >"$folder/java-home"

cp deploy/image/entrypoint.sh deploy/image/health.py deploy/image/make-user.sh LICENSE "$folder/"
cp deploy/databricks/kquota_job.py "$folder/job.py"
chmod 755 "$folder/entrypoint.sh"
"$folder/venv/bin/python" -m compileall -q "$folder/venv/lib" || true # some packages bring files for other Pythons
