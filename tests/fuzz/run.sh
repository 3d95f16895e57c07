#!/usr/bin/env bash
# Builds the fuzzers and runs each of them: tests/fuzz/run.sh [SECONDS EACH, default 30] [NAME...].
# Seeds are corpus/NAME and, where they fit, files that ship; what is found lies in build/fuzz.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-30}
shift || true
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for source in tests/fuzz/*_fuzz.cpp; do
    source=${source##*/}
    names+=("${source%_fuzz.cpp}")
  done
fi
bash config/build.sh fuzz "${names[@]/#/fuzz_}"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fuzz() {
  local name=$1 seeds=$scratch/$1
  mkdir "$seeds"
  if [ -d "tests/fuzz/corpus/$name" ]; then
    cp "tests/fuzz/corpus/$name"/* "$seeds"
  fi
  case $name in
    config) cp config/run.toml "$seeds" ;;
    history)
      cp config/cost_models/*.conf "$seeds"
      head -n 20 config/models/collatz-moe/history/v1.csv >"$seeds/v1.csv"
      ;;
    records) head -n 2 config/models/collatz-moe/prompts_train.jsonl >"$seeds/prompts.jsonl" ;;
  esac
  if "build/fuzz/bin/fuzz_$name" -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="build/fuzz/$name-" "$seeds" >"$seeds.log" 2>&1; then
    echo "$name: $(grep '^Done' "$seeds.log")"
  else
    tail -n 60 "$seeds.log" >&2
    echo "$name: FAILED; the input lies in build/fuzz" >&2
    return 1
  fi
}

echo "== fuzz: ${#names[@]} targets, $seconds seconds each, two at a time"
failed=0 running=0
for name in "${names[@]}"; do
  if [ "$running" -eq 2 ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
  fuzz "$name" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
exit "$failed"
