#!/usr/bin/env bash
# Configures where that has not been done, and builds: build.sh PRESET [TARGET...]. At most two jobs:
# a file that spawns typed actors takes up to 1 GB of memory to compile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift

if [ ! -f "build/$preset/build.ninja" ]; then
  echo "== configure: preset $preset into build/$preset"
  cmake --preset "$preset" >"/tmp/adafloor-configure-$$.log" 2>&1 || {
    cat "/tmp/adafloor-configure-$$.log" >&2
    exit 1
  }
  rm -f "/tmp/adafloor-configure-$$.log"
fi
echo "== build: build/$preset (minutes the first time, seconds after)"
# What changed is compiled; unchanged sources cost one look at each file.
exec ninja -C "build/$preset" -j2 "$@"
