#!/bin/sh
# Put promtool into a folder: unpacked from Debian's package, because installing that starts a server.
#   scripts/promtool.sh .venv/bin
set -eu
into=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
apt-get download -qq prometheus >/dev/null 2>&1
dpkg -x prometheus_*.deb .
cp usr/bin/promtool "$into/"
