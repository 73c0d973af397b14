"""What depends on the operating system. All that Linux has and macOS lacks is here, and nowhere else (tests/test_portable.py)."""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

from rlhf_ray.data.errors import SettingError

LINUX = sys.platform.startswith("linux")
OPENGL = "libEGL.so.1"
"""What draws MuJoCo's images on a Linux machine without a screen."""
CORES = "RLHF_RAY_CORES"
"""Environment variable with a bound of the cores to use, for this process and those that it starts."""
TORCH_THREADS = "OMP_NUM_THREADS"
"""Environment variable with the number of torch's own threads in a process; Ray and torch know it, too."""
MEMORY = Path("/proc/meminfo")
_loaded: set[str] = set()


def usable_cores() -> int:
    """Return the number of cores that this process may use, by the system and `bound_cores`; or else the machine's."""
    return within_bound(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def within_bound(threads: int) -> int:
    """Return ``threads``, or the fewer that `bound_cores` allows."""
    bound = core_bound()
    return threads if bound is None else min(threads, bound)


def core_bound() -> int | None:
    """Return what `bound_cores` allows; None if it was not called."""
    bound = os.environ.get(CORES, "")  # anything but what `bound_cores` wrote is ignored
    return int(bound) or None if bound.isdecimal() else None


def torch_threads() -> int | None:
    """Return how many threads of its own torch is told to have in this process, by ``OMP_NUM_THREADS``; None if nothing is said.

    Raises:
        SettingError: it is neither a whole number of 1 or more nor a list of them, of which the first one counts.
    """
    told = os.environ.get(TORCH_THREADS, "").strip()
    numbers = [each.strip() for each in told.split(",")] if told else []
    if not all(each.isdecimal() and int(each) for each in numbers):
        raise SettingError(
            f"The environment variable {TORCH_THREADS} is {told!r}; it must be a whole number, 1 or more: unset it, or set it to 1."
        )
    return int(numbers[0]) if numbers else None


def bound_cores(cores: int | None) -> None:
    """Let this process, and those that it starts, use so many cores at most; None for no bound.

    Raises:
        SettingError: there are none, or torch's own threads take more.
    """
    if cores is None:
        return
    if cores < 1:
        raise SettingError(f"--cores is {cores}; it must be 1 or more.")
    if (threads := torch_threads() or 1) > cores:
        remedy = f"unset {TORCH_THREADS}, or give as many cores"
        raise SettingError(f"--cores is {cores}, but {TORCH_THREADS} gives torch {threads} threads: {remedy}.")
    os.environ[CORES] = str(cores)


def available_memory() -> int | None:
    """Return the bytes that new processes can take; None where the system does not say."""
    with contextlib.suppress(OSError):
        lines = MEMORY.read_text().splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    return None


def draw_offscreen() -> None:
    """Let MuJoCo draw without a screen; on Linux it raises or ends the process otherwise, elsewhere it refuses the word."""
    if LINUX:
        os.environ.setdefault("MUJOCO_GL", "egl")


def load_opengl() -> None:
    """Load OpenGL, if it is there, for a library that looks for it when it is imported."""
    if LINUX:
        with contextlib.suppress(OSError):
            ctypes.CDLL(OPENGL, ctypes.RTLD_GLOBAL)
            _loaded.add(OPENGL)


def opengl_loaded() -> bool:
    """Return whether `load_opengl` found it. Other systems than Linux always have theirs."""
    return not LINUX or OPENGL in _loaded
