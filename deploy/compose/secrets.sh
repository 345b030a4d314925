#!/bin/sh
# Makes the secrets of compose.yaml that are missing, each of 32 random hexadecimal digits, in the folder `secrets`.
set -eu
cd "$(dirname "$0")"
mkdir -p secrets
chmod 0755 secrets # containers read the files as users of their own
for name in gate-token dashboard-token grafana-password; do
  [ -s "secrets/$name" ] && continue
  od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"secrets/$name"
  chmod 0644 "secrets/$name"
  echo "made secrets/$name"
done
