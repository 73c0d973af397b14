"""What the hot paths cost, in counts that no busy machine changes: operations of torch, processes, modules, bytes.

Times are measured in benchmarks/; these are the gate against a path that silently falls back to a slower one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf_ray.optim import FlatAdam, shuffled
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.settings import RewardModelSettings
from tests.command_line import run_python
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, some_comparisons
from tests.policies.test_ppo_update import ACTIONS, LOSS, policy, rows_of
from tests.rllib.test_array_env_runner import runners
from tests.test_install import SMALLEST


class Counting(TorchDispatchMode):
    """Counts the operations that torch dispatches, without views as arrays of numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is not torch.ops.aten.detach.default
        return func(*args, **(kwargs or {}))


def operations(call: Callable[[int], Any], few: int, many: int) -> float:
    """Operations of each step: how many more ``many`` steps take than ``few``."""
    counts = []
    for steps in (few, many):
        with Counting() as counting:
            call(steps)
        counts.append(counting.count)
    return (counts[1] - counts[0]) / (many - few)


@pytest.mark.parametrize(("network", "members", "most"), [("mlp", 1, 80), ("mlp", 3, 208), ("mixed", 3, 293)])
def test_a_gradient_step_of_an_ensemble_of_mlps(network: str, members: int, most: int) -> None:
    of = RewardModelSettings(network=network, ensemble_size=members, hidden=(64, 64), batch_size=32)
    trainer = RewardTrainer(of, VECTORS, FORCES, held_out_share=0.0, seed=0)
    trainer.comparisons.add(some_comparisons(64, 10))
    trainer.fit(1)
    assert operations(trainer.fit, 2, 22) <= most


def test_a_gradient_step_of_an_ensemble_of_cnns() -> None:
    of = RewardModelSettings(ensemble_size=3, hidden=(64,), batch_size=32, precision="float32")
    trainer = RewardTrainer(of, IMAGES, CHOICES, held_out_share=0.0, seed=0)
    trainer.comparisons.add(some_comparisons(32, 5, observations=IMAGES, actions=CHOICES))
    trainer.fit(1)
    assert operations(trainer.fit, 1, 6) <= 192


@pytest.mark.parametrize("space", ACTIONS, ids=["box", "discrete", "multi"])
def test_a_minibatch_of_ppo(space: Any) -> None:
    update = policy(space)
    rows, optimizer = rows_of(update), FlatAdam(update.flat, lr=1e-3)

    def steps(count: int) -> None:
        update.take_steps(optimizer, rows, LOSS, shuffled(len(rows), count, 32, minibatches=count), max_norm=0.5)

    steps(1)
    assert operations(steps, 4, 24) <= 16


def test_each_frame_is_kept_once() -> None:
    comparisons = some_comparisons(20, 5, observations=IMAGES, actions=CHOICES)
    seen = comparisons.pairs.left.observations
    seen[1:, :-1] = seen[0, 1]  # most frames are the same
    trainer = RewardTrainer(RewardModelSettings(), IMAGES, CHOICES, held_out_share=0.0, seed=0)
    trainer.comparisons.add(comparisons)
    frames = trainer.comparisons.stacked.inputs["frames"]
    different = {
        frame.tobytes() for side in (seen, comparisons.pairs.right.observations) for frame in side.reshape(-1, 1200)
    }
    assert frames.nbytes <= 1.1 * 1200 * len(different)


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["Pendulum-v1", "CartPole-v1"])
def test_no_operation_of_torch_for_a_step_of_vectors(environment: str) -> None:
    _, runner = runners(environment, num_envs=4, rollout_length=50)
    runner.sample(num_timesteps=200)
    assert operations(lambda steps: runner.sample(num_timesteps=4 * steps), 50, 150) < 0.1
    runner.stop()


def loaded(command: str, *modules: str) -> list[str]:
    """Which of these modules a command imports."""
    script = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('LOADED', *[name for name in {modules!r} if name in sys.modules], flush=True))\n"
        f"sys.argv = {['rlhf-ray', *command.split()]!r}\n"
        "from rlhf_ray.cli import main\nmain()"
    )
    return run_python(script).stdout.rpartition("LOADED")[2].split()


def test_help_imports_nothing_slow() -> None:
    assert loaded("--help", "torch", "ray", "numpy", "gymnasium", "rich", "tyro") == []
    assert loaded("train pendulum --help", "torch", "ray", "scipy", "pandas") == []


@pytest.mark.slow
def test_a_run_imports_nothing_slow_that_it_does_not_use(tmp_path: Path) -> None:
    slow = [
        "torch._dynamo",
        "torch._inductor",
        "sklearn",
        "captum",
        "fastapi",
        "uvicorn",
        "stable_baselines3",
        "imitation",
    ]
    words = " ".join(["train pendulum", *SMALLEST, "--run-dir", str(tmp_path / "run")])
    assert loaded(words, *slow, "scipy.ndimage", "matplotlib", "rlhf_ray.labelling.desk") == []
