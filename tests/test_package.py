"""What importing the package does to the process."""

import os
import subprocess
import sys

import pytest


def threads(program: str, **environment: str) -> int:
    """What ``program`` prints, in a fresh process whose environment says nothing of threads but ``environment``."""
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=clean | environment, check=True
    )
    return int(finished.stdout)


@pytest.mark.parametrize("imports", ["import rlhf_ray, torch", "import torch, rlhf_ray"])
def test_importing_the_package_leaves_torch_one_thread(imports: str) -> None:
    assert threads(f"{imports}; print(torch.get_num_threads())") == 1


def test_whoever_sets_another_number_keeps_it() -> None:
    assert threads("import rlhf_ray, torch; print(torch.get_num_threads())", OMP_NUM_THREADS="2") == 2


def test_the_method_needs_no_ray() -> None:
    program = (
        "import sys, rlhf_ray.reward, rlhf_ray.store, rlhf_ray.envs, rlhf_ray.selection; print('ray' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "False"
