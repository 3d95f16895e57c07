#!/usr/bin/env bash
# What moving live requests costs: bandwidth of a migration beside plain fetches of the same bytes (bar: 0.8
# of them), then decode steps that moved requests missed while 4 ranks decode (bar: 3 at the 99th percentile).
# Exits 1 when a bar is missed.
#   tests/bench/migrate.sh [more options of `adafloor run`]      BUILD=path/to/build to choose the programs
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=${BUILD:-$root/build/release}/bin
for program in migrate_bench adafloor; do
  [[ -x $bin/$program ]] || { echo "no $bin/$program; ninja -C ${BUILD:-build/release} $program" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
missed=0
"$bin/migrate_bench" || missed=1
"$bin/adafloor" run --ranks 4 --floor 2 --steps 4 --n 8 --arms natural,planned --migrate consolidate \
  --sidecar-model none --out "$work/out" "$@" &> "$work/log" || { tail -n 5 "$work/log" >&2; exit 2; }
python3 - "$work/out/events.jsonl" <<'P' || missed=1
import json, sys
moves = [e for e in map(json.loads, open(sys.argv[1])) if e["event"] == "move" and e["outcome"] == "moved"]
if not moves: sys.exit("no request moved: nothing to measure")
steps = sorted(e["missed_steps"] for e in moves)
at = lambda q: steps[min(int(q * len(steps)), len(steps) - 1)]
print(f"{'ok' if at(.99) <= 3 else 'MISSED'}: {len(moves)} requests moved, {sum(e['bytes'] for e in moves) / 1e6:.1f} MB in"
      f" {sum(e['rounds'] for e in moves)} rounds; decode steps missed: p50 {at(.5)}, p99 {at(.99)}, max {steps[-1]}, bar 3 at p99")
sys.exit(at(.99) > 3)
P
exit $missed
