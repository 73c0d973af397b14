"""Reward training: comparisons per CPU second of `RewardTrainer`, beside imitation's trainers and plain torch doing the same work.

All arms start from the same weights of the same network (state and action; two hidden layers, ReLU), take in the same comparisons
and go through them equally often, 32 at a time, with the same AdamW: imitation's defaults. Timed is all that a user pays for once
the comparisons are there: taking them in, the gradient steps and, in our arm, the renewed normaliser and the report of accuracies.
imitation runs without progress bar and log output, and its fragments lack the true reward, which spares it a metric (some 5 %).
An ensemble of 3 stands beside three of its BasicRewardTrainers, one after the other. Plain torch is what one writes by hand: the
members' layers stacked, one batched product each, autograd. No arm bootstraps or models its annotators. The loss of our
arm is that of the average of its weights, which a fit publishes: after so few steps it is higher than that of the last weights.

One process, one thread, CPU time. A round (ours, imitation, torch, torch, imitation, ours; the next one the other way round) gives
one ratio of times for each of the others; the table has their median and its bootstrap 95 % interval, and an arm's first runs
against its second ones (A/A).

    ./setup.sh && . .venv/bin/activate              # imitation is among the development dependencies
    python benchmarks/reward_training.py            # half a CPU hour; writes benchmarks/results/reward_training.json
    python benchmarks/reward_training.py --quick    # a look, not a measurement; writes nothing

imitation's time goes to a Python loop over the pairs, nearly whatever their length; ours to matrix products.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", TQDM_DISABLE="1")  # read when torch and tqdm are imported

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from imitation.algorithms import preference_comparisons as pc
from imitation.data.types import Trajectory
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util.logger import configure

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import bootstrap
from benchmarks.record import record
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.networks.mlp import StackedLinear
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.teachers import Oracle

OBSERVATIONS = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
BATCH, EPOCHS = 32, 3  # imitation's batch size, and the epochs of its examples


def made_up(n: int, length: int, seed: int = 0) -> Comparisons:
    """``n`` comparisons of random clips by an oracle, whose reward is the first observation minus the action squared."""
    rng = np.random.default_rng(seed)
    seen = rng.standard_normal((2 * n, length + 1, 4)).astype(np.float32)
    done = rng.uniform(-1, 1, (2 * n, length, 2)).astype(np.float32)
    rewards = (seen[:, :-1, 0] - (done**2).sum(-1)).astype(np.float64)
    zeros = np.zeros(2 * n, dtype=np.int64)
    clips = Fragments(seen, done, rewards, terminated=zeros.astype(bool), starts=zeros, policy_versions=zeros)
    pairs = Pairs.of(clips, np.arange(2 * n).reshape(n, 2))
    return Comparisons(pairs, Oracle().answer(pairs, rng))


def new_networks(members: int, hidden: int, seed: int) -> list[BasicRewardNet]:
    torch.manual_seed(seed)
    return [BasicRewardNet(OBSERVATIONS, ACTIONS, hid_sizes=(hidden, hidden)) for _ in range(members)]


def layers_of(network: BasicRewardNet) -> list[torch.nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)]


def our_trainer(networks: list[BasicRewardNet], seed: int = 0) -> RewardTrainer:
    """Our trainer, with a copy of the weights of imitation's ``networks``."""
    same: dict[str, Any] = {"activation": "relu", "learning_rate": 1e-3, "weight_decay": 1e-2, "label_noise": 0.0}
    same |= {"hidden": tuple(layer.out_features for layer in layers_of(networks[0])[:-1]), "normalize_inputs": "none"}
    settings = RewardModelSettings(**same, ensemble_size=len(networks), bootstrap=False, batch_size=BATCH)
    trainer = RewardTrainer(settings, OBSERVATIONS, ACTIONS, held_out_share=0.0, seed=seed)
    stacked = [layer for layer in trainer.ensemble.modules() if isinstance(layer, StackedLinear)]
    for member, of in enumerate(networks):
        for ours, theirs in zip(stacked, layers_of(of), strict=True):
            ours.weight.data[member], ours.bias.data[member] = theirs.weight.data.T, theirs.bias.data
    return trainer


def loss_of(networks: list[BasicRewardNet], comparisons: Comparisons) -> float:
    trainer = our_trainer(networks)
    trainer.comparisons.add(comparisons)
    return trainer.fit(0).train_loss


def cpu_seconds(*steps: Callable[[], object]) -> float:
    gc.collect()  # so that neither arm pays for the other's garbage
    started = time.process_time()
    for step in steps:
        step()
    return time.process_time() - started


def result(seconds: float, loss: float, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """What a training took and came to, and what its optimisers (imitation has one for each member) say of it."""
    (group,) = optimizers[0].param_groups
    (steps,) = {int(state["step"]) for optimizer in optimizers for state in optimizer.state.values()}
    return {
        "seconds": seconds,
        "loss": loss,
        "gradient_steps": steps,
        "parameters": sum(p.numel() for optimizer in optimizers for p in optimizer.param_groups[0]["params"]),
        "optimizer": type(optimizers[0]).__name__,
        **{name: group[name] for name in ("lr", "betas", "eps", "weight_decay", "amsgrad")},
    }


def train_ours(comparisons: Comparisons, networks: list[BasicRewardNet], epochs: int, seed: int) -> dict[str, Any]:
    trainer, updates = our_trainer(networks, seed), epochs * -(-len(comparisons) // BATCH)
    seconds = cpu_seconds(partial(trainer.comparisons.add, comparisons), partial(trainer.fit, updates))
    return result(seconds, trainer.fit(0).train_loss, [trainer.optimizer])


def train_imitation(comparisons: Comparisons, networks: list[BasicRewardNet], epochs: int, seed: int) -> dict[str, Any]:
    """Trains ``networks`` themselves."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        silent = configure(folder, format_strs=[])
    trainers: list[Any] = [
        pc.BasicRewardTrainer(
            pc.PreferenceModel(network), pc.CrossEntropyRewardLoss(), rng, BATCH, epochs=epochs, custom_logger=silent
        )
        for network in networks
    ]
    sides = [
        [Trajectory(obs, acts, None, False) for obs, acts in zip(side.observations, side.actions, strict=True)]
        for side in (comparisons.pairs.left, comparisons.pairs.right)
    ]
    pairs: list[Any] = list(zip(*sides, strict=True))
    dataset = pc.PreferenceDataset()
    fits = [partial(trainer.train, dataset) for trainer in trainers]
    seconds = cpu_seconds(partial(dataset.push, pairs, comparisons.preferences), *fits)
    return result(seconds, loss_of(networks, comparisons), [trainer.optim for trainer in trainers])


class StackedNetwork(torch.nn.Module):
    """``networks`` as one, with a copy of their weights: the members' layers stacked."""

    def __init__(self, networks: list[BasicRewardNet]):
        super().__init__()
        of_members = list(zip(*map(layers_of, networks), strict=True))
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.stack([layer.weight.data.T for layer in layers]).contiguous())
            for layers in of_members
        )
        self.biases = torch.nn.ParameterList(
            torch.nn.Parameter(torch.stack([layer.bias.data[None] for layer in layers])) for layers in of_members
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the reward ``[members, n]`` of ``inputs`` ``[n, size]``."""
        values = inputs.expand(len(self.biases[0]), -1, -1)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = torch.baddbmm(bias, values, weight)
            values = torch.relu(values) if number + 1 < len(self.weights) else values
        return values[..., 0]


def train_torch(comparisons: Comparisons, networks: list[BasicRewardNet], epochs: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    network = StackedNetwork(networks)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-2)
    losses: list[torch.Tensor] = []

    def loss_of_batch(inputs: torch.Tensor, preferences: torch.Tensor) -> torch.Tensor:
        """Return each member's loss, ``[members]``."""
        rewards = network(inputs.flatten(0, 2)).view(len(networks), *inputs.shape[:3]).sum(-1)
        odds = rewards[..., 0] - rewards[..., 1]
        targets = preferences.expand_as(odds)
        return torch.nn.functional.binary_cross_entropy_with_logits(odds, targets, reduction="none").mean(1)

    def fit() -> None:
        sides = comparisons.pairs.left, comparisons.pairs.right
        steps = [np.concatenate([side.observations[:, :-1], side.actions], -1) for side in sides]
        inputs = torch.as_tensor(np.stack(steps, 1))
        preferences = torch.as_tensor(comparisons.preferences, dtype=torch.float32)
        for _ in range(epochs):
            for batch in torch.randperm(len(inputs)).split(BATCH):
                optimizer.zero_grad()
                loss_of_batch(inputs[batch], preferences[batch]).sum().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        with torch.no_grad():
            losses.append(loss_of_batch(inputs, preferences).mean())

    seconds = cpu_seconds(fit)
    return result(seconds, float(losses[0]), [optimizer])


ARMS = {"ours": train_ours, "imitation": train_imitation, "torch": train_torch}
OTHERS = tuple(ARMS)[1:]
ROWS = (
    *((members, 32, length, 512) for members, length in ((1, 25), (1, 100), (3, 25), (3, 100), (5, 50))),
    *((3, size, 50, 512) for size in (64, 128)),
    *((3, size, 50, 128) for size in (256, 512)),
    (3, 1024, 50, 64),
)
"""Members, units of each hidden layer, steps of a fragment, comparisons: fewer for large networks, which take long."""


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "interval_95": bootstrap(values), "each": list(values)}


def measure(members: int, hidden: int, length: int, count: int, rounds: int, epochs: int = EPOCHS) -> dict[str, Any]:
    """``rounds`` rounds, each of them with its own comparisons and starting weights, after one that is not counted."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ARMS}
    for seed in range(rounds + 1):
        comparisons = made_up(count, length, seed)
        before = loss_of(new_networks(members, hidden, seed), comparisons)
        order = list(ARMS)[:: 1 if seed % 2 else -1]
        for name in (*order, *reversed(order)):
            run = ARMS[name](comparisons, new_networks(members, hidden, seed), epochs, seed)
            runs[name].append({"loss_before": before, **run})
    seconds = {name: np.array([run["seconds"] for run in each[2:]]).reshape(-1, 2) for name, each in runs.items()}
    row: dict[str, Any] = {
        "members": members,
        "hidden": hidden,
        "length": length,
        "comparisons": count,
        "epochs": epochs,
    }
    row["ratio"] = {name: spread((seconds[name].sum(1) / seconds["ours"].sum(1)).tolist()) for name in OTHERS}
    for name, each in runs.items():
        losses = {of: statistics.mean(run[of] for run in each[2:]) for of in ("loss_before", "loss")}
        row[name] = {**each[-1], **losses, "seconds": seconds[name].tolist()}
        row[name]["comparisons_per_cpu_second"] = count * epochs / float(np.median(seconds[name]))
        row[name]["a_a"] = spread((seconds[name][:, 0] / seconds[name][:, 1]).tolist())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10, help="rounds; each has two runs of either arm")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 64 comparisons")
    options = parser.parse_args()
    print("members units length arm        comparisons/CPU s   A/A  loss before, after  its time to ours (95 %)")
    rows = []
    for members, hidden, length, count in ROWS:
        row = measure(
            members, hidden, length, min(count, 64) if options.quick else count, 2 if options.quick else options.pairs
        )
        rows.append(row)
        for name in ARMS:
            text = "{comparisons_per_cpu_second:17.0f} {a_a[median]:5.2f} {loss_before:12.3f} {loss:6.3f}"
            ratio = "  {median:.2f} ({interval_95[0]:.2f} to {interval_95[1]:.2f})"
            last = ratio.format(**row["ratio"][name]) if name in OTHERS else ""
            print(f"{members:7} {hidden:5} {length:6} {name:10} {text.format(**row[name])}{last}", flush=True)
    if not options.quick:
        record("reward_training", {"imitation": version("imitation"), "rows": rows})


if __name__ == "__main__":
    main()
