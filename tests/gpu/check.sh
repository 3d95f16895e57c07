#!/usr/bin/env bash
# Everything that only a GPU can prove, in at most eight minutes on one H200 where the build directory
# is warm: parity of kernels, goldens, exactness, compute-sanitizer, figures against the bandwidth
# bound and cuBLAS. Prints one table; exit 0 when all that could run passed, 77 (skipped) with the
# reason where there is no GPU.
#
#     bash tests/gpu/check.sh [BUILD_DIR]        default: build/release
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=${1:-build/release}
logs=$build/gpu-check
SECONDS=0

skip() {
  echo "tests/gpu/check.sh: skipped: $1"
  exit 77
}
command -v nvidia-smi >/dev/null || skip "no NVIDIA driver on this machine (nvidia-smi is not there)"
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
[ -n "$card" ] || skip "the NVIDIA driver shows no GPU"
command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || skip "no nvcc, so there is no CUDA plug-in to check"

mkdir -p "$logs"
table=()
failed=0

# check NAME SECONDS COMMAND...: one row of the table; output goes to a log of its own.
check() {
  local name=$1 bound=$2 begun=$SECONDS state=passed
  shift 2
  timeout "$bound" "$@" >"$logs/$name.log" 2>&1 || state="FAILED ($?)"
  [ "$state" = passed ] || failed=1
  table+=("$(printf '%-22s %-14s %5d s  %s' "$name" "$state" $((SECONDS - begun)) \
    "$(grep -aE 'test cases out of|ERROR SUMMARY|RACECHECK SUMMARY|^step:|no spills|digest' "$logs/$name.log" | tail -n 1)")")
}

# shellcheck disable=SC2317 # called through bash -c
digest_of() { # DEVICE RANKS [MORE...]
  "$build/bin/adafloor" run --device "$1" --ranks "$2" --prompts-per-step 4 --epochs 1 --out "$logs/run-$*" "${@:3}" \
    --json 2>>"$logs/exactness.err" | python3 -c 'import json,sys; print(json.load(sys.stdin)["arms"][0]["tokens_digest"])'
}
# shellcheck disable=SC2317
exactness() { # one digest on cpu and cuda, for two ranks that share the GPU, and for a world of NCCL's
  local one cuda two nccl half half_cuda
  one=$(digest_of cpu 2) || return 1
  cuda=$(digest_of cuda 1) || return 1
  two=$(digest_of cuda 2) || return 1
  nccl=$(digest_of cuda 1 --collective nccl) || return 1
  half=$(digest_of cpu 2 --kv-dtype bfloat16) || return 1
  half_cuda=$(digest_of cuda 1 --kv-dtype bfloat16) || return 1
  echo "digest cpu $one, cuda $cuda, two ranks $two, nccl $nccl; bfloat16 pages: cpu $half, cuda $half_cuda"
  [ "$one" = "$cuda" ] && [ "$one" = "$two" ] && [ "$one" = "$nccl" ] && [ "$half" = "$half_cuda" ]
}
export build logs
export -f digest_of exactness

# The build, when it is not there, is not counted: it needs a machine with CPUs, not a GPU.
bash config/build.sh "$(basename "$build")" adafloor adafloor_cuda kernels_bench test_gpu_cuda_bodies test_golden_golden \
  test_gpu_launcher_device test_gpu_plugin test_gpu_nccl_fabric || exit 1
SECONDS=0
check spills 20 python3 tests/gpu/ptxas.py "$build/bin/ptxas.txt"
check plugin 30 "$build/bin/test_gpu_plugin" --report_level=short
check parity 60 "$build/bin/test_gpu_cuda_bodies" --report_level=short
check goldens 90 "$build/bin/test_golden_golden" --report_level=short
check engine 90 "$build/bin/test_gpu_launcher_device" --report_level=short
check nccl 60 "$build/bin/test_gpu_nccl_fabric" --report_level=short
check exactness 90 bash -c exactness
if command -v compute-sanitizer >/dev/null; then
  check memcheck 90 compute-sanitizer --tool memcheck --error-exitcode 1 "$build/bin/test_gpu_cuda_bodies"
  check racecheck 90 compute-sanitizer --tool racecheck --error-exitcode 1 "$build/bin/test_gpu_cuda_bodies"
else
  table+=("$(printf '%-22s %-14s          compute-sanitizer is not installed' sanitizer skipped)")
fi
check bench-decode 40 "$build/bin/kernels_bench" 64 4096
check bench-long-tail 40 "$build/bin/kernels_bench" 1 32768
check bench-prefill 40 "$build/bin/kernels_bench" 256 4096 prefill
if nvcc -O2 -o "$logs/cublas_bench" tests/gpu/cublas_bench.cu -lcublas 2>"$logs/cublas.err"; then
  check cublas 40 "$logs/cublas_bench" 64
fi

echo "== $card, $(date -u +%Y-%m-%d), $SECONDS s, logs in $logs"
printf '%s\n' "${table[@]}"
echo "== decode, 64 rows, 4096 positions"
cat "$logs/bench-decode.log"
[ -f "$logs/cublas.log" ] && echo "== cuBLAS, the same products" && cat "$logs/cublas.log"
exit $failed
