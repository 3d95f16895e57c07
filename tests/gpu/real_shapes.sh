#!/usr/bin/env bash
# The code path of Qwen3-30B-A3B at its true width (hidden 2048, 128 experts, vocabulary 151936,
# bfloat16) on the CPU: writes sharded random weights of a few layers, reads them by mmap, generates
# alone and in a batch, compares, and exits 1 when over 6 GiB were used. Three layers need two
# minutes and 5 GB of disk, so it is no part of ctest.
#
#     bash tests/gpu/real_shapes.sh [LAYERS] [FOLDER]    FOLDER is kept; default: a temporary one
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
layers=${1:-3}
model=${2:-$(mktemp -d)}
[ $# -ge 2 ] || trap 'rm -rf "$model"' EXIT
bash config/build.sh release adafloor
[ -f "$model/config.json" ] || python3 config/models/scripts/random_moe.py "$model" "$layers"

python3 - "$model" "$layers" <<'PY'
import json, resource, subprocess, sys, tempfile, time

model, layers = sys.argv[1], int(sys.argv[2])
PROMPTS = [[151643, 9707, 11, 1879], [42] * 40, [7, 150000, 3]]
LIMIT_GIB = 6

def generate(prompts, *more):
    began = time.time()
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as lines:
        lines.writelines(json.dumps({"prompt_token_ids": p}) + "\n" for p in prompts)
        lines.flush()
        command = ["build/release/bin/adafloor", "generate", "--model", model, "--prompts", lines.name, "--max-tokens", "4", "--ignore-eos", "--json", *more]
        done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode != 0: sys.exit(f"failed: {' '.join(command)}")
    print(f"{len(prompts)} prompts {' '.join(more)}: {time.time() - began:.1f} s, so far at most "
          f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20:.2f} GiB with the mapped files")
    return [(r["tokens"], r["logprobs"]) for r in json.loads(done.stdout)["outputs"]]

batch = generate(PROMPTS)
alone = generate(PROMPTS, "--max-num-seqs", "1")
gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
print("tokens", [tokens for tokens, _ in batch])
if batch != alone: sys.exit("a batch gives other bits than one request after the other")
if gib > LIMIT_GIB: sys.exit(f"{gib:.2f} GiB were used, allowed are {LIMIT_GIB}")
print(f"same bits alone and in a batch; {gib:.2f} of {LIMIT_GIB} GiB")
PY
