"""SAC's gradient step: CPU time of a batch of 256, beside Stable-Baselines3, SBX (JAX) and a plain loop in torch.

Networks of WalkerWalk's shapes (24 numbers, 6 actions): an actor and two critics with two hidden layers, Adam, targets that move by
0.005. All but the plain loop draw their batches from a replay buffer of 20,000 transitions; that loop, the usual single file with
critics that are computed one after the other, has its batch at hand. SBX takes part where it is installed (`pip install sbx-rl`).

One process, one thread, CPU time. Arms alternate; the first turn is not counted.

    python benchmarks/sac_update.py          # 3 CPU minutes; writes benchmarks/results/sac_update.json
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import argparse
import copy
import importlib.util
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from stable_baselines3 import SAC
from stable_baselines3.common.logger import configure
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import cpu_seconds, in_turns, ratio
from benchmarks.record import record
from rlhf_ray.rllib.sac import ReplaySACConfig

SIZE, STEPS, ROWS = 256, 40, 20_000
SEEN, ACTIONS = gym.spaces.Box(-np.inf, np.inf, (24,), np.float32), gym.spaces.Box(-1.0, 1.0, (6,), np.float32)


class Noise(gym.Env):  # type: ignore[type-arg]
    """Spaces, and observations of noise."""

    observation_space, action_space = SEEN, ACTIONS

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        """Take a step."""
        return self.observation_space.sample(), 0.0, False, False, {}


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "observations": rng.normal(size=(ROWS + 1, 24)).astype(np.float32),
        "actions": rng.uniform(-1.0, 1.0, (ROWS, 6)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
    }


def ours(units: int) -> Callable[[], None]:
    """Return a function that takes the steps of our learner."""
    config = ReplaySACConfig().environment(Noise)
    config.training(hidden=(units, units), train_batch_size_per_learner=SIZE, updates_per_env_step=1.0)
    learner = config.build_learner(spaces={DEFAULT_MODULE_ID: (SEEN, ACTIONS)})
    learner.build()
    data = {name: list(values) for name, values in drawn(np.random.default_rng(0)).items()}
    learner.replay.add([SingleAgentEpisode(**data, len_lookback_buffer=0).to_numpy()])

    def update() -> None:
        learner._learn(STEPS)

    return update


def of_sb3(units: int, kind: Any = SAC) -> Callable[[], None]:
    """Return a function that takes SB3's gradient steps, or those of another ``kind`` of its interface."""
    options: Any = {"policy_kwargs": {"net_arch": [units, units]}, "batch_size": SIZE, "buffer_size": ROWS}
    agent = kind("MlpPolicy", Noise(), device="cpu", **options)
    agent.set_logger(configure(None, []))
    data, buffer = drawn(np.random.default_rng(0)), agent.replay_buffer
    assert buffer is not None
    for i in range(ROWS):
        row = (data["observations"][i : i + 1], data["observations"][i + 1 : i + 2], data["actions"][i : i + 1])
        buffer.add(*row, data["rewards"][i : i + 1], np.zeros(1), [{}])
    return lambda: agent.train(STEPS, SIZE)


def of_sbx(units: int) -> Callable[[], None]:
    """Return a function that takes SBX's gradient steps: one call of what JAX has compiled."""
    import sbx

    return of_sb3(units, sbx.SAC)


def of_torch(units: int) -> Callable[[], None]:
    """Return a function that takes the steps of a plain loop."""

    def mlp(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(), nn.Linear(units, outputs)
        )

    actor, critics, log_alpha = mlp(24, 12), nn.ModuleList([mlp(30, 1), mlp(30, 1)]), nn.Parameter(torch.zeros(1))
    targets = copy.deepcopy(critics)
    parts = {"actor": list(actor.parameters()), "critic": list(critics.parameters()), "alpha": [log_alpha]}
    adams = {name: torch.optim.Adam(part, 3e-4, fused=True) for name, part in parts.items()}
    data = {name: torch.as_tensor(values[:SIZE]) for name, values in drawn(np.random.default_rng(0)).items()}

    def act(seen: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(seen).chunk(2, -1)
        normal = torch.distributions.Normal(mean, (-5.0 + 3.5 * (torch.tanh(log_std) + 1.0)).exp())
        before = normal.rsample()
        action = torch.tanh(before)
        return action, (normal.log_prob(before) - torch.log(1.0 - action**2 + 1e-6)).sum(-1)

    def lower(of: nn.ModuleList, seen: Tensor, action: Tensor) -> Tensor:
        return torch.minimum(*(critic(torch.cat([seen, action], -1))[:, 0] for critic in of))

    def descend(name: str, loss: Tensor) -> None:
        adams[name].zero_grad()
        loss.backward()
        adams[name].step()

    def update() -> None:
        seen, action, reward = data["observations"], data["actions"], data["rewards"]
        for _ in range(STEPS):
            alpha = log_alpha.exp().detach()
            with torch.no_grad():
                acted, log = act(seen)
                target = reward + 0.99 * (lower(targets, seen, acted) - alpha * log)
            pairs = torch.cat([seen, action], -1)
            descend("critic", sum(((critic(pairs)[:, 0] - target) ** 2).mean() for critic in critics))
            acted, log = act(seen)
            descend("actor", (alpha * log - lower(critics, seen, acted)).mean())
            descend("alpha", (log_alpha * (-log.mean().detach() + 6.0)).sum())
            with torch.no_grad():
                for to, of in zip(targets.parameters(), critics.parameters(), strict=True):
                    to.lerp_(of, 0.005)

    return update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15, help="turns that are counted")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for units in (128, 256):
        arms = {"ours": ours, "sb3": of_sb3, "torch": of_torch}
        if importlib.util.find_spec("sbx"):
            arms["sbx"] = of_sbx
        spent = in_turns({name: cpu_seconds(arm(units)) for name, arm in arms.items()}, options.turns)
        milliseconds = {name: 1000.0 * statistics.median(each) / STEPS for name, each in spent.items()}
        others = {f"ours_over_{name}": ratio(spent["ours"], spent[name]) for name in arms if name != "ours"}
        rows[f"{units}-{units}"] = {"milliseconds": milliseconds, **others}
    print(rows)
    record("sac_update", {"turns": options.turns, "sizes": rows})


if __name__ == "__main__":
    main()
