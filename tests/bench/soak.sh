#!/usr/bin/env bash
# Many steps: 200 rollouts in a row, each of which contracts 4 -> 2 and restores. Prints resident memory,
# descriptors and threads of each rank process around step 20 and around the last; exits 1 when memory grew
# over 2 %, descriptors or threads changed, or over a tenth of the steps were over before they could contract.
#   tests/bench/soak.sh [STEPS] [more options of `adafloor run`]     ADAFLOOR=path/to/adafloor to choose the program
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
program=${ADAFLOOR:-$root/build/release/bin/adafloor}
[[ -x $program ]] || { echo "no program at $program; build preset release or set ADAFLOOR" >&2; exit 2; }
steps=${1:-200}
shift || true
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Two answers that are over at once and two that reach the limit, one per rank.
for n in 4 27 8 31; do
  echo "{\"prompt_id\": \"$n\", \"prompt_token_ids\": [11, $((n % 10)), $((n / 10)), 0, 0, 0, 0]}"
done > "$work/prompts.jsonl"
"$program" run --ranks 4 --floor 2 --steps 1 --epochs "$steps" --n 2 --prompts-per-step 4 --max-response-length 120 \
  --prompts "$work/prompts.jsonl" --history none --arms natural --out "$work/out" "$@" > "$work/log" 2>&1 &
launcher=$!
status=0
python3 - "$launcher" "$work/out/events.jsonl" "$steps" <<'P' || status=$?
import json, os, pathlib, statistics, sys, time
launcher, events, steps = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
def sample():
    ranks = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(); fields = text.rsplit(")", 1)[1].split()
            if fields[1] != launcher: continue
            name = text[text.index("(") + 1:text.rindex(")")]
            # statm's figure is a rough one, off by megabytes with many threads
            rollup = (stat.parent / "smaps_rollup").read_text()
            resident = 1024 * int(rollup[rollup.index("Rss:"):].split()[1])
            ranks[name] = (resident, len(os.listdir(stat.parent / "fd")), int(fields[17]))
        except OSError: continue
    return ranks
done, contracted, seen, early, late, rest = 0, set(), 0, {}, {}, b""
stream = None
while pathlib.Path(f"/proc/{launcher}").exists() and "Z" not in pathlib.Path(f"/proc/{launcher}/stat").read_text().rsplit(")", 1)[1].split()[0]:
    if stream is None and events.exists(): stream = events.open("rb")
    rest += stream.read() if stream else b""
    *lines, rest = rest.split(b"\n")
    before = done
    for event in map(json.loads, lines):
        if event["event"] == "transition" and event["kind"] == "contract": contracted.add(done)
        if event["event"] == "step_end": done += 1
    # Between steps, when no rank holds more than its own experts.
    into = early if 16 <= done <= 24 else late if steps - 9 <= done < steps else None
    if into is not None and done > before:
        for name, figures in sample().items(): into.setdefault(name, []).append(figures)
    time.sleep(0.005)
if not early or set(early) != set(late): sys.exit(f"{done} of {steps} steps, too few samples")
failed = len(contracted) < 0.9 * steps
print(f"{done} steps, {len(contracted)} of them contracted")
print(f"{'rank':>12} {'MB at 20':>9} {'MB at ' + str(steps):>9} {'growth':>8} {'descriptors':>12} {'threads':>9}")
for name in sorted(early):
    a, b = early[name], late[name]
    before, after = (statistics.median(s[0] for s in x) for x in (a, b))
    descriptors, threads = ((max(s[i] for s in a), max(s[i] for s in b)) for i in (1, 2))
    print(f"{name:>12} {before / 1e6:>9.2f} {after / 1e6:>9.2f} {100 * (after / before - 1):>7.2f}% {'%d -> %d' % descriptors:>12} {'%d -> %d' % threads:>9}")
    failed |= after > 1.02 * before or descriptors[0] != descriptors[1] or threads[0] != threads[1]
print("MISSED: memory may grow 2 %, descriptors and threads not, and steps contract" if failed else "ok: nothing grows")
sys.exit(failed)
P
wait "$launcher" || { tail -5 "$work/log" >&2; status=1; }
exit $status
