#!/usr/bin/env bash
# The planner's bars on recorded epochs: planned from one, executed on another, all ordered pairs.
# Prints each figure beside its bar; exits 1 when one is missed, 77 (skipped) without the data.
#   tests/bench/planner_bars.sh [EPOCHS.csv]      ADAFLOOR=path/to/adafloor to choose the program
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
data=${1:-$root/../shared/data/adafloor_epochs.csv}
program=${ADAFLOOR:-$root/build/release/bin/adafloor}
[[ -r $data ]] || { echo "skipped: $data is not here; name another history CSV with epochs a, b, c, d" >&2; exit 77; }
[[ -x $program ]] || { echo "no program at $program; build preset release or set ADAFLOOR" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
epochs=${EPOCHS:-a,b,c,d}
simulate() {
  "$program" simulate --history "$data" --pairs "$epochs" --cost-model ascend-eager --max-num-seqs 32 \
    --capacity 2:131072,4:280576,8:377344,16:380800 --planned-capacity 4:133120,8:262656,16:380800 --json "$@" 2>/dev/null
}
for guard in off on; do
  simulate --guard $guard --arms all --group-sizes 16,8,4,2 > "$work/fixed_$guard.json"
  simulate --guard $guard --arms adafloor_n_f2,adaptive_migrate --group-sizes 16,12,8,6,4,3,2 --resize-pool > "$work/free_$guard.json"
done
python3 - "$work" <<'P'
import json, sys
work, missed = sys.argv[1], 0
read = lambda name: json.load(open(f"{work}/{name}.json"))
def bar(what, value, low, high):
    global missed
    fine = low <= value <= high
    missed += not fine
    print(f"{'ok    ' if fine else 'MISSED'} {what:<58} {value:>12.4f}   allowed {low:.4f} .. {high:.4f}")
def by_arm(run): return {a["arm"]: a for a in run["arms"]}
def worst(data, arm): return max(by_arm(r)[arm]["bound"] / by_arm(r)["adafloor_n_f2"]["bound"] for r in data["runs"])
for guard, paper, plain, packed in (("off", 64583, 1.004, 0.857), ("on", 62970, 1.003, 0.852)):
    data, free = read(f"fixed_{guard}"), read(f"free_{guard}")
    mean = lambda arm, figure, d=data: d["summary"][arm][figure]["mean"]
    reference = mean("adafloor_n_f2", "bound")
    print(f"guard {guard}, {len(data['runs'])} pairs; {data['cost_model']['notes']}")
    if guard == "off":
        bar("vanilla, rollout seconds", mean("vanilla", "rollout_seconds"), 5894 * 0.98, 5894 * 1.02)
        bar("vanilla, dummy rank-s", mean("vanilla", "dummy"), 28519 * 0.95, 28519 * 1.05)
    bar("paper n_f2, bound rank-s", reference, paper * 0.98, paper * 1.02)
    bar("adaptive / paper n_f2, bound", mean("adaptive", "bound") / reference, 0, plain)
    bar("adaptive / paper n_f2, bound, worst pair", worst(data, "adaptive"), 0, 1.015)
    bar("adaptive_migrate / paper n_f2, bound", mean("adaptive_migrate", "bound") / reference, 0, packed)
    bar("adaptive_migrate / paper n_f2, bound, worst pair", worst(data, "adaptive_migrate"), 0, 0.88)
    bar("adaptive_migrate / paper n_f2, seconds", mean("adaptive_migrate", "rollout_seconds") / mean("adafloor_n_f2", "rollout_seconds"), 0, 1.01)
    bar("free sizes and pool / paper n_f2, bound", mean("adaptive_migrate", "bound", free) / reference, 0, 0.80)
    print(f"       lower bound on these step sets / paper n_f2: {data['summary']['lower_bound']['bound']['mean'] / reference:.4f}")
    tokens = {}
    for d in (data, free):
        for run in d["runs"]:
            for a in run["arms"]:
                if a["arm"] not in ("vanilla", "oracle", "fixed4"):
                    missed += a["preemptions"] > 0
                    if a["preemptions"]: print(f"MISSED {a['arm']} preempts {a['preemptions']} times")
                l = a["ledger"]
                gap = abs(l["rank_seconds"] - sum(l[k] for k in ("busy", "dummy", "leased", "transition", "idle")))
                if gap > 1e-6 * l["rank_seconds"]:
                    missed += 1; print(f"MISSED ledger of {a['arm']}: {gap} rank-s unaccounted for")
                if not a["truncated_by_guard"]: tokens.setdefault(run["workload"], set()).add(a["tokens_digest"])
    uneven = [w for w, t in tokens.items() if len(t) != 1]
    missed += len(uneven)
    print(f"{'MISSED' if uneven else 'ok    '} arms that cut nothing generate the same tokens; ledgers exact; preemption only in vanilla, fixed4, oracle")
print("all bars met" if not missed else f"{missed} bars missed")
sys.exit(bool(missed))
P
