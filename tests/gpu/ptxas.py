#!/usr/bin/env python3
"""Reads the assembler's report of the CUDA plug-in: no kernel may spill registers to memory, and the
hot ones must leave room for two blocks of 256 threads per multiprocessor. Prints one line per kernel
and architecture: registers, stack bytes, spilled bytes."""
import re, sys

REGISTERS_MAX = 128  # 65536 per multiprocessor / (2 blocks * 256 threads)
KERNELS = {"embed", "rms_norm", "gemm", "rotate", "scores", "softmax", "mix", "silu", "route", "permute", "combine", "copy", "sample"}
ARCHITECTURES = {"sm_80", "sm_90", "sm_100"}

def kernels(text):
    """(name, architecture, registers, stack, spilled) of every entry function."""
    entry = re.compile(r"Compiling entry function '\S*run_blockINS_\d+(\w+?)_kernel(\S*)' for '(sm_\d+)'")
    parts = entry.split(text)[1:]
    for name, storage, arch, body in zip(parts[0::4], parts[1::4], parts[2::4], parts[3::4]):
        stack, stores, loads = map(int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", body).groups())
        registers = int(re.search(r"Used (\d+) registers", body)[1])
        kind = "bfloat16" if "bfloat16" in storage else "float32" if storage.startswith("If") else ""
        rows = re.search(r"Li(\d+)E", storage)
        yield name, f"{kind}{' x' + rows[1] if rows else ''}", arch, registers, stack, stores + loads

report = list(kernels(open(sys.argv[1]).read()))
wrong = []
print(f"{'kernel':<10} {'storage':<12} {'arch':<7} {'registers':>9} {'stack':>6} {'spilled':>8}")
for name, kind, arch, registers, stack, spilled in sorted(report):
    print(f"{name:<10} {kind:<12} {arch:<7} {registers:>9} {stack:>6} {spilled:>8}")
    if spilled or stack or registers > REGISTERS_MAX: wrong.append(f"{name} {kind} {arch}")
missing = KERNELS - {k[0] for k in report}
architectures = {k[2] for k in report}
if missing: wrong.append("not in the report: " + ", ".join(sorted(missing)))
if not architectures or not architectures <= ARCHITECTURES: wrong.append(f"architectures {sorted(architectures)}")
print(f"{len(report)} kernels for {', '.join(sorted(architectures))}:", "; ".join(["spills or too many registers: " + w for w in wrong]) or "no spills")
sys.exit(bool(wrong))
