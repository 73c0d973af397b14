"""Numbers in which gradient steps compute convolutions."""

from __future__ import annotations

import functools

import torch


@functools.cache
def computes_in_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 numbers. Not measured: a run must repeat bit for bit."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def in_bfloat16(precision: str, device: torch.device) -> bool:
    """Return whether convolutions on ``device`` compute in bfloat16 in gradient steps.

    Args:
        precision: float32; bfloat16; or auto: bfloat16 on CPUs that compute with it, otherwise float32.
        device: of the gradient steps.
    """
    if precision == "auto":
        return device.type == "cpu" and computes_in_bfloat16()
    return precision == "bfloat16"
