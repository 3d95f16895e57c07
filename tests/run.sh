#!/usr/bin/env bash
# Runs all tests: installs what is missing, builds release (optimized, assertions kept) and calls
# ctest. The last lines are ctest's own. A second run builds nothing. Arguments go to ctest, for
# example: bash tests/run.sh -R '^messages'. A test that fails is tried up to twice more, because many rank
# processes share few cores with whatever else the machine does; ctest says when that was needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash config/install.sh build
bash config/build.sh release
echo "== test: ctest in build/release"
exec ctest --test-dir build/release --output-on-failure --no-tests=error --timeout 600 --repeat until-pass:3 -LE gpu "$@"
