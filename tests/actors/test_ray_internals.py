"""The private side of Ray that is used, at work in the installed Ray."""

import os
from pathlib import Path

import pytest
import ray

from rlhf_ray.actors import cluster, ray_internals
from tests.command_line import run_python


@pytest.mark.usefixtures("ray_session")
def test_a_head_is_called_by_its_address() -> None:
    ray_internals.call_head(ray.get_runtime_context().gcs_address, timeout=20.0)


START = """
import os, psutil, signal, time
import ray
from rlhf_ray.actors import cluster
from ray._private import services

def running():
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]

def fails(*arguments):
    seen.extend(running())
    raise Exception("The current node timed out during startup.")

handler = signal.getsignal(signal.SIGTERM)
seen, get_node = [], services.get_node
services.get_node = fails
try:
    cluster.start_ray(cpus=1)
except cluster.access.NoAccessError as error:
    assert "in three attempts" in str(error)
else:
    raise AssertionError("it started")
assert len(seen) >= 6, seen  # two at least of each attempt
assert not running(), running()
for _ in range(100):
    left = [one for one in seen if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    if not left:
        break
    time.sleep(0.1)
assert not left, left
assert not {"MALLOC_ARENA_MAX", "RAY_worker_niceness"} & set(os.environ)

services.get_node = get_node
cluster.start_ray(cpus=1)

@ray.remote(num_cpus=0)
def told():
    return os.environ["MALLOC_ARENA_MAX"], os.nice(0)

assert ray.get(told.remote(), timeout=60) == ("2", 0)
words = [" ".join(process.cmdline()) for process in running()]
assert not any(name in line for line in words for name in ("dashboard.py", "log_monitor.py", "monitor.py")), words
assert os.getpgid(0) not in {os.getpgid(process.pid) for process in running()}
assert signal.getsignal(signal.SIGTERM) is handler
ray.shutdown()
"""


@pytest.mark.soak
def test_a_start_that_fails_leaves_nothing_and_one_that_succeeds_has_no_helpers() -> None:
    """The processes are real; that Ray has waited its half minute is not."""
    kept = {name: value for name, value in os.environ.items() if name not in cluster.FOR_ACTORS}
    run_python(START, env=kept)


OPEN_TO = """
import os, subprocess, sys
from rlhf_ray.actors import cluster
import ray
cluster.start_ray(cpus=1)
for mode in ("token", "disabled"):
    call = f"from rlhf_ray.actors.ray_internals import call_head; call_head({ray.get_runtime_context().gcs_address!r}, 10.0)"
    done = subprocess.run([sys.executable, "-c", call], env=os.environ | {"RAY_AUTH_MODE": mode}, capture_output=True)
    print("open" if done.returncode == 0 else "closed")
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("mode", [None, "disabled"])
def test_rays_processes_ask_for_a_token_or_a_line_says_that_they_do_not(mode: str | None, tmp_path: Path) -> None:
    """Ray listens on all interfaces. Without RAY_AUTH_MODE, it makes a token in the home folder."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"} | {"HOME": str(tmp_path)}
    env |= {"RAY_AUTH_MODE": mode} if mode else {}
    done = run_python(OPEN_TO, env=env)
    with_token, without = done.stdout.split()
    assert (with_token, without) == ("closed" if mode else "open", "open" if mode else "closed")
    assert ("RAY_AUTH_MODE is 'disabled'" in done.stderr) == bool(mode)
