"""Run Python with the arithmetic of another machine: the kernels that torch, oneDNN, MKL, OpenBLAS and numpy use on it.

    python benchmarks/kernels.py sse -m pytest tests/measure     # as on a CPU with SSE 4.2 alone
    python benchmarks/kernels.py avx2 -m rlhf_ray train cartpole
    python benchmarks/kernels.py own -m …                         # this machine's own kernels
    JITTER=3 PRECISION=bfloat16 python benchmarks/kernels.py own -m …   # and what benchmarks/hooks/sitecustomize.py changes

The last bits of floating-point results differ between them, and a training amplifies the difference: each stands for a machine.
JITTER stands for others, by other last bits in initial weights; PRECISION for CPUs with and without bfloat16.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

HOOKS = Path(__file__).resolve().parent / "hooks"
"""Where it is on PYTHONPATH, a process is changed as its environment says."""
PRECISIONS = ("float32", "bfloat16")
KERNELS: Mapping[str, Mapping[str, str]] = {
    "own": {},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    },
    "sse": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    },
}
"""Environment variables of each; the libraries read them when they are imported, so processes that are started inherit them."""


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in KERNELS:
        raise SystemExit(f"Name the kernels first: {', '.join(KERNELS)}; then what python is to run.")
    jitter, precision = os.environ.get("JITTER", ""), os.environ.get("PRECISION", "")
    if jitter and not jitter.isdecimal():
        raise SystemExit(f"JITTER is {jitter!r}; it is a whole number, 0 for none.")
    if precision and precision not in PRECISIONS:
        raise SystemExit(f"PRECISION is {precision!r}; it is one of {', '.join(PRECISIONS)}.")
    environment = os.environ | KERNELS[name]
    if jitter or precision or "FIRED" in environment:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HOOKS), environment.get("PYTHONPATH"))))
    os.execve(sys.executable, [sys.executable, *sys.argv[2:]], environment)


if __name__ == "__main__":
    main()
