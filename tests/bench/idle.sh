#!/usr/bin/env bash
# What idle ranks cost: CPU time of 8 joined, idle rank processes as a share of one core. Exits 1
# above 10 %.   tests/bench/idle.sh [RANKS]     ADAFLOOR=path/to/adafloor to choose the program
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
program=${ADAFLOOR:-$root/build/release/bin/adafloor}
[[ -x $program ]] || { echo "no program at $program; build preset release or set ADAFLOOR" >&2; exit 2; }
ranks=${1:-8}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$program" run --ranks "$ranks" --floor 2 --steps 1 --n 1 --prompts-per-step "$ranks" --max-response-length 16 \
  --arms vanilla --hold-seconds 14 --out "$work/out" > "$work/log" 2>&1 &
launcher=$!
python3 - "$launcher" "$ranks" <<'P'
import os, pathlib, sys, time
launcher, ranks = sys.argv[1], int(sys.argv[2])
def children():
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try: fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError: continue
        if fields[1] == launcher: found.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return found
time.sleep(4)
before, began = children(), time.monotonic()
time.sleep(8)
after, seconds = children(), time.monotonic() - began
if len(before) != ranks or len(after) != ranks: sys.exit(f"expected {ranks} rank processes, saw {len(before)} and {len(after)}")
share = (sum(after) - sum(before)) / seconds
print(f"{ranks} idle rank processes: {100 * share:.1f} % of one core, allowed 10 %")
sys.exit(share > 0.10)
P
wait "$launcher"
