#!/usr/bin/env bash
# From a bare Debian 12 to a real epoch of elastic rollouts: installs packages, builds release, runs
# both arms on the models that ship, ends with a table and the path of the report. A second run
# skips what is done. Further arguments go to `adafloor run`, after the ones given here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash config/install.sh build
bash config/build.sh release adafloor
echo "== run: one epoch, 8 ranks, vanilla and then natural, on the models in config/models"
exec build/release/bin/adafloor run --ranks 8 --floor 2 --arms vanilla,natural "$@"
