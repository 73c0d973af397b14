"""What importing the package does to the process: nothing."""

import subprocess
import sys

PROGRAM = """
import os, random, sys, torch, numpy

def everything():
    streams = random.getstate(), numpy.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    return torch.get_num_threads(), dict(os.environ), streams

before = everything()
import rlhf_ray, rlhf_ray.reward, rlhf_ray.store, rlhf_ray.envs
import rlhf_ray.queries.pool, rlhf_ray.labelling.desk, rlhf_ray.measure.true_return
print(before == everything(), "ray" in sys.modules)
"""


def test_importing_the_method_changes_nothing_process_wide_and_needs_no_ray() -> None:
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == ["True", "False"]
