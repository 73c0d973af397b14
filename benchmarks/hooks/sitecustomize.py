"""Changes the arithmetic of each Python process with this folder on PYTHONPATH, where benchmarks/kernels.py puts it.

Python imports it first, so it also reaches commands and Ray's workers. Environment variables say what it changes:

- JITTER=k: every weight that `torch.nn.init` draws is smaller by a factor between 1 - 1e-6 and 1, fixed by its shape and k.
- PRECISION=float32 or bfloat16: what the setting ``precision: auto`` means on a CPU.

With FIRED=file, each of the two adds its initial to the file when it takes place, also where its variable is unset.
"""

import functools
import importlib.machinery
import os
import sys
import zlib

DRAWING = (
    *("uniform_", "normal_", "trunc_normal_", "orthogonal_", "sparse_"),
    *("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_"),
)
RELATIVE = 1e-6


def fired(initial):
    if path := os.environ.get("FIRED"):
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:  # the tests have ended
            return
        os.write(file, initial)
        os.close(file)


def jitter(init):
    import torch

    k = int(os.environ.get("JITTER") or 0)

    def jittered(function):
        @functools.wraps(function)
        def drawn(tensor, *arguments, **keywords):
            result = function(tensor, *arguments, **keywords)
            fired(b"J")
            if k and not tensor.is_meta:
                shape = tuple(tensor.shape)
                generator = torch.Generator().manual_seed(k * 1_000_003 + zlib.crc32(repr(shape).encode()))
                factors = 1 - RELATIVE * torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
                with torch.no_grad():
                    tensor.mul_(factors.to(tensor))  # never beyond the bounds of the draw
            return result

        return drawn

    for name in DRAWING:
        setattr(init, name, jittered(getattr(init, name)))


def resolve(module):
    own = module.computes_in_bfloat16
    named = os.environ.get("PRECISION")

    def computes_in_bfloat16():
        fired(b"P")
        return named == "bfloat16" if named else own()

    module.computes_in_bfloat16 = computes_in_bfloat16


CHANGES = {"torch.nn.init": jitter, "rlhf_ray.optim": resolve}


class _Changed:
    """A finder that changes modules when they have been loaded, before anything can import a name from them."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in CHANGES or (spec := importlib.machinery.PathFinder.find_spec(name, path)) is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            CHANGES[name](module)

        spec.loader.exec_module = load_and_change
        return spec


sys.meta_path.insert(0, _Changed)
