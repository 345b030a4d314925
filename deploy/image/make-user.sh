#!/bin/sh
# Makes the user that the image runs as, and the one folder that it writes to. Needs root.
set -eu
groupadd --gid 10001 kquota
useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/kquota --shell /usr/sbin/nologin kquota
install -d -o 10001 -g 10001 -m 0750 /var/lib/kquota
