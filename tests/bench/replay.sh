#!/bin/sh
# Replays a recorded epoch with 16 emulated ranks and compares the ledger of the run with that of `adafloor simulate`.
#
#   tests/bench/replay.sh PROGRAM LENGTHS_CSV PAST_EPOCH EPOCH [TIME_SCALE [ARM...]]
#
# An arm is NAME[:FLOOR[:MIGRATE]]; without any: vanilla natural:2 planned:4 adaptive:2:consolidate. Exit 1 if rollout time or a
# column of the ledger that holds at least 1 % of the rank-seconds deviates by more than 3 %.
set -eu
program=$1 lengths=$2 past=$3 epoch=$4 scale=${5:-0.05}
shift $(($# < 5 ? $# : 5))
[ $# -gt 0 ] || set -- vanilla natural:2 planned:4 adaptive:2:consolidate
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
common="--history-epochs $past --workload-epoch $epoch --cost-model ascend-eager --ranks 16"

echo "epoch $epoch planned from $past, 16 ranks, time scale $scale; rollout s, the rest rank-seconds; deviation of the run in %"
printf '%-28s %-9s %11s %11s %11s %11s %11s %11s\n' arm "" rollout busy dummy leased transition idle
worst=0
for arm in "$@"; do
  name=${arm%%:*} rest=${arm#"${arm%%:*}"}
  rest=${rest#:} floor=${rest%%:*} migrate=off
  case $rest in *:*) migrate=${rest#*:} ;; esac
  case $name in
    vanilla) model=vanilla ;;
    natural) model=adafloor_n_f${floor:=2}_noguard; [ "$floor" = 2 ] || model=adafloor_n_f$floor ;;
    planned) model=adafloor_p_f${floor:=4} ;;
    adaptive) model=adaptive; [ "$migrate" = off ] || model=adaptive_migrate ;;
    *) echo "$arm: arms are vanilla, natural, planned, adaptive" >&2; exit 2 ;;
  esac
  floor=${floor:-2}
  # shellcheck disable=SC2086
  "$program" simulate --history "$lengths" $common --count-prompt-tokens --floor "$floor" --migrate "$migrate" \
    --arms "$model" --json > "$place/model.json"
  # shellcheck disable=SC2086
  "$program" run --device emulated --workload "$lengths" $common --time-scale "$scale" --arms "$name" --floor "$floor" \
    --migrate "$migrate" --out "$place/run" --json > "$place/run.json" 2> "$place/progress"
  python3 - "$arm" "$place/model.json" "$place/run.json" << 'PYTHON' || worst=1
import json, sys

def figures(path):
    arm = json.load(open(path))["arms"][0]
    ledger = arm["ledger"]
    return [arm["rollout_seconds"]] + [ledger[c] for c in ("busy", "dummy", "leased", "transition", "idle")], arm

arm, (model, _), (run, books) = sys.argv[1], figures(sys.argv[2]), figures(sys.argv[3])
share = [100 * (r - m) / m if m else 0 for m, r in zip(model, run)]
for label, row, form in (("simulate", model, "%11.0f"), ("run", run, "%11.0f"), ("%", share, "%+11.2f")):
    print("%-28s %-9s" % (arm if label == "simulate" else "", label), " ".join(form % x for x in row))
print("%-28s late at the end of a rollout by %.2f s of the clock at most" % ("", books["behind_seconds"]), flush=True)
counts = [True] + [m >= 0.01 * sum(model[1:]) for m in model[1:]]
sys.exit(any(c and abs(s) > 3 for c, s in zip(counts, share)))
PYTHON
done
exit $worst
