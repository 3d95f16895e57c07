#!/usr/bin/env bash
# How long a group decodes nothing when one of its ranks dies: 8 ranks, one of which crashes or freezes while all
# decode. Prints for each run the silence that was waited for and what the recovery took, and whether tokens and
# log-probabilities are those of a run without the fault; the same for rank 0, whose death starts all ranks again.
# Exits 1 when they are not, or when a frozen rank was waited for longer than 3 heartbeat intervals (rank 0 included).
#   tests/bench/recover.sh [RUNS [more options of `adafloor run`]]     ADAFLOOR=path/to/adafloor
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
program=${ADAFLOOR:-$root/build/release/bin/adafloor}
[[ -x $program ]] || { echo "no program at $program; build preset release or set ADAFLOOR" >&2; exit 2; }
runs=${1:-5}
shift $(($# < 1 ? $# : 1))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { # NAME [options]
  local name=$1
  shift
  "$program" run --ranks 8 --floor 8 --steps 1 --n 8 --max-response-length 1500 --sidecar-model none --arms vanilla \
    --out "$work/$name" --json "$@" > "$work/$name.json" 2> "$work/$name.err" || { cat "$work/$name.err" >&2; exit 2; }
}
run plain "$@"
for ((i = 0; i < runs; ++i)); do
  run "crash$i" --fault "at=token_batch role=rank rank=$((1 + i % 7)) do=crash" "$@"
  run "freeze$i" --fault "at=token_batch role=rank rank=$((1 + i % 7)) do=freeze" "$@"
  run "planner_crash$i" --fault "at=token_batch role=planner rank=0 skip=40 do=crash" "$@"
  run "planner_freeze$i" --fault "at=token_batch role=planner rank=0 skip=40 do=freeze" "$@"
done
python3 - "$work" "$runs" <<'P'
import glob, json, re, statistics, sys
work, runs = sys.argv[1], int(sys.argv[2])
whole = lambda name: json.load(open(f"{work}/{name}.json"))
plain = whole("plain")["arms"][0]
bad = False
for kind in ("crash", "freeze"):
    silences, recoveries = [], []
    for i in range(runs):
        result = whole(f"{kind}{i}")
        arm = result["arms"][0]
        same = all(arm[d] == plain[d] for d in ("tokens_digest", "logprobs_digest"))
        beats = result["job"]["runtime"]["heartbeat_ms"] / 1000
        for r in arm["recoveries"]:
            silences.append(r["silence_seconds"])
            recoveries.append(r["recovery_seconds"])
            print(f"{kind} of rank {r['lost']}: silence {r['silence_seconds']:.2f} s, recovery {1e3 * r['recovery_seconds']:.1f} ms,"
                  f" {r['requests_rebuilt']} requests rebuilt, {r['tokens_from_log']} of their tokens from the log,"
                  f" {r['experts_reloaded']} experts reloaded; same tokens: {same}")
        bad = bad or not same or not arm["recoveries"] or max(silences) > 3 * beats
    if silences:
        print(f"{kind}: stall p50 {statistics.median(silences) + statistics.median(recoveries):.2f} s, of which recovery"
              f" p50 {1e3 * statistics.median(recoveries):.1f} ms, max {1e3 * max(recoveries):.1f} ms")
for kind in ("planner_crash", "planner_freeze"):
    lost = []
    for i in range(runs):
        result = whole(f"{kind}{i}")
        arm = result["arms"][0]
        same = all(arm[d] == plain[d] for d in ("tokens_digest", "logprobs_digest"))
        logs = "".join(open(log).read() for log in glob.glob(f"{work}/{kind}{i}/rank-*.log"))
        silences = [int(ms) / 1000 for ms in re.findall(r"the planner was silent for (\d+) ms", logs)]
        if kind == "planner_freeze":
            print(f"the planner was missed by {len(silences)} ranks after {min(silences, default=0):.2f} to {max(silences, default=0):.2f} s")
            bad = bad or not silences or max(silences) > 3 * result["job"]["runtime"]["heartbeat_ms"] / 1000
        for r in arm["resumptions"]:
            lost.append(r["seconds_lost"])
            print(f"{kind.replace('_', ' ')}: {r['seconds_lost']:.2f} s from the step's beginning until it went on, with"
                  f" {r['responses_kept']} responses and {r['tokens_from_log']} tokens of others; same tokens: {same}")
        bad = bad or not same or len(arm["resumptions"]) != 1
    if lost:
        print(f"{kind.replace('_', ' ')}: p50 {statistics.median(lost):.2f} s, max {max(lost):.2f} s")
print("MISSED" if bad else "ok")
sys.exit(bad)
P
