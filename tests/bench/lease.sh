#!/usr/bin/env bash
# What leases cost the rollout: paired runs with and without a sidecar, in turn, of a heavy-tailed workload on 16
# emulated ranks whose freed ranks really answer queries on this machine. Prints a line per pair and the median
# ratio of rollout times (bar: 1.03); exits 1 when it is missed, or when nothing was lent.
#   tests/bench/lease.sh [PAIRS [TIME_SCALE [more options of `adafloor run`]]]     ADAFLOOR=path/to/adafloor
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
program=${ADAFLOOR:-$root/build/release/bin/adafloor}
[[ -x $program ]] || { echo "no program at $program; build preset release or set ADAFLOOR" >&2; exit 2; }
pairs=${1:-5} scale=${2:-0.04}
shift $(($# < 2 ? $# : 2))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - "$work/lengths.csv" <<'P'
import random, sys
draw = random.Random(5)
with open(sys.argv[1], "w") as out:
    out.write("epoch,position,prompt_id,sample,prompt_tokens,response_tokens,truncated\n")
    usual = [draw.lognormvariate(5.6, 0.8) for _ in range(64)]
    for epoch in "ab":
        for prompt, length in enumerate(usual):
            for sample in range(4):
                tokens = min(4000, max(1, round(length * draw.lognormvariate(0, 0.4))))
                out.write(f"{epoch},{prompt},p{prompt},{sample},100,{tokens},0\n")
P
run() { # NAME [options]
  local name=$1
  shift
  "$program" run --device emulated --cost-model ascend-eager --workload "$work/lengths.csv" --history-epochs a --workload-epoch b \
    --ranks 16 --time-scale "$scale" --arms natural --floor 2 --out "$work/$name" --json "$@" > "$work/$name.json" 2> "$work/$name.err" \
    || { cat "$work/$name.err" >&2; exit 2; }
}
model=$root/config/models/arith-dense-bf16
for ((i = 0; i < pairs; ++i)); do
  lent() { run "lent$i" --sidecar-model "$model" --sidecar-queries "$model/queries_heldout.jsonl" "$@"; }
  alone() { run "alone$i" --sidecar-model none "$@"; }
  if ((i % 2)); then lent "$@"; alone "$@"; else alone "$@"; lent "$@"; fi
done
python3 - "$work" "$pairs" <<'P'
import json, statistics, sys
work, pairs = sys.argv[1], int(sys.argv[2])
ratios, units = [], 0
print(f"{'pair':>4} {'alone s':>9} {'lent s':>9} {'ratio':>7} {'leases':>7} {'units':>6} {'of start-up':>11} {'units/s':>8}"
      f" {'revoke p50, p99 ms':>19} {'forced':>6} {'slow-down':>9} {'cuts':>5} {'late s':>7}")
for i in range(pairs):
    alone, lent = (json.load(open(f"{work}/{name}{i}.json"))["arms"][0] for name in ("alone", "lent"))
    leases = lent["leases"]
    ratios.append(lent["rollout_seconds"] / alone["rollout_seconds"])
    units += leases["units"]
    print(f"{i:>4} {alone['rollout_seconds']:>9.1f} {lent['rollout_seconds']:>9.1f} {ratios[-1]:>7.4f} {leases['granted']:>7} {leases['units']:>6}"
          f" {leases['start_up_share']:>11.3f} {leases['units_per_leased_second']:>8.2f}"
          f" {1e3 * leases['revoke_seconds_p50']:>9.1f} {1e3 * leases['revoke_seconds_p99']:>9.1f} {leases['forced']:>6} {leases['slowdown']:>9.4f}"
          f" {leases['cuts']:>5} {lent['behind_seconds']:>7.3f}")
median = statistics.median(ratios)
if units == 0: sys.exit("nothing was lent: nothing to measure")
print(f"{'ok' if median <= 1.03 else 'MISSED'}: {median:.4f} times the rollout time without leases in the median pair, bar 1.03"
      " (seconds and rates are of the cost model)")
sys.exit(median > 1.03)
P
