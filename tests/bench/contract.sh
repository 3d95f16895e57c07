#!/usr/bin/env bash
# What contractions 8 -> 4 -> 2 cost those who go on decoding: per rollout, the decode steps around its
# contractions that took over twice the median of the steps about them, of the same group, summed and counted
# in medians (bar: 5), beside the same sum over as many steps where nothing happened, and the expert bytes
# moved beside a plain copy of them. The median is of the 20 steps before and after: requests end all the time,
# so the steps of a group that has just formed take several times as long as its last ones, and their length
# says nothing of the contraction. The policy has random weights and steps of milliseconds: in a shorter step, any millisecond
# that the system takes counts as several. Prints one table; exits 1 when the median rollout misses the bar.
#   tests/bench/contract.sh [more options of `adafloor run`]     ADAFLOOR=path/to/adafloor to choose the program
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
program=${ADAFLOOR:-$root/build/release/bin/adafloor}
[[ -x $program ]] || { echo "no program at $program; build preset release or set ADAFLOOR" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$root/tests/bench/contract_model.py" "$work"
"$program" run --ranks 8 --floor 2 --arms natural --steps 4 --model "$work/model" --prompts "$work/prompts.jsonl" \
  --history "$work/history.csv" --kv-capacity-tokens 131072 --sidecar-model none --out "$work/out" --json "$@" > "$work/run.json"
python3 - "$work" <<'P'
import csv, json, statistics, sys, time
work = sys.argv[1]
before, after = 30, 10  # decode steps around a switch that count as the contraction's
about = 20  # decode steps before and after one that say what is usual

def ratios(steps):
    def usual(at):
        size = steps[at][1]
        return statistics.median(t for t, s in steps[max(at - about, 0) : at + about + 1] if s == size)
    return [t / usual(at) for at, (t, _) in enumerate(steps)]

arm = json.load(open(f"{work}/run.json"))["arms"][0]
rollouts, steps = [], []
for row in csv.DictReader(open(f"{work}/out/steps.csv")):
    if int(row["step"]) == 0: steps = []; rollouts.append(steps)
    steps.append((float(row["seconds"]), int(row["group_size"])))
contractions, mine = [], []
for t in arm["transitions"]:
    if t["kind"] == "contract": mine.append(t)
    else: contractions.append(mine); mine = []
print(f"{'rollout':>7} {'steps':>6} {'median ms':>10} {'stall, steps':>13} {'elsewhere':>10} {'pause max ms':>13} {'moved kB':>9} {'moved in ms':>12} {'copied in ms':>13}")
stalls, noise = [], []
for i, (times, cuts) in enumerate(zip(rollouts, contractions)):
    if not cuts: continue
    ratio = ratios(times)
    median = statistics.median(t for t, _ in times)
    near = {s for t in cuts for s in range(max(t["at_step"] - before, 0), t["at_step"] + after)}
    slow = lambda chosen: sum(ratio[s] for s in chosen if s < len(ratio) and ratio[s] > 2)
    far = [s for s in range(len(times)) if s not in near and s > before]
    stall = slow(near)
    elsewhere = slow(far) * len(near) / max(len(far), 1)
    moved = sum(t["bytes"] for t in cuts)
    source = bytearray(moved); began = time.perf_counter(); bytes(source); copied = time.perf_counter() - began
    stalls.append(stall); noise.append(elsewhere)
    print(f"{i:>7} {len(times):>6} {1e3 * median:>10.3f} {stall:>13.1f} {elsewhere:>10.1f} {1e3 * max(t['pause_seconds'] for t in cuts):>13.2f}"
          f" {moved / 1e3:>9.1f} {1e3 * sum(t['prepare_to_settled_seconds'] for t in cuts):>12.1f} {1e3 * copied:>13.2f}")
if not stalls: sys.exit("no rollout contracted: nothing to measure")
worst = statistics.median(stalls)
print(f"{'ok' if worst <= 5 else 'MISSED'}: {worst:.1f} median decode steps in the median rollout, bar 5;"
      f" as many steps elsewhere: {statistics.median(noise):.1f}")
sys.exit(worst > 5)
P
