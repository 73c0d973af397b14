"""Reward learning from pixels: the CNN of imitation, the same in both arms, and how much memory a comparison takes.

Both arms start from the same weights of `CnnRewardNet` (imitation's; our `pooled_cnn`): two convolutions of 3x3 with 32 filters on
images of 64x64x3, their average, one output per action. They go through the same comparisons equally often, 8 at a time, with the
same AdamW; ours also makes the report of a fit. It computes convolutions in float32, and in bfloat16 if the CPU has it. Such a
network costs 0.24 GFLOP per image and gradient step: the hardware's limit, not Python, is near.

Those fits are too short to learn much, so the default CNN is fitted in both precisions to more comparisons, and judged on
comparisons that no fit has seen.

Memory is what the trainer holds for comparisons of fragments from MovingDot, beside the bytes of the different images in them, and
the most that a fit takes on top.

    python benchmarks/pixels.py     # 10 minutes; writes benchmarks/results/pixels.json
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", TQDM_DISABLE="1")

import argparse
import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from imitation.algorithms import preference_comparisons as pc
from imitation.data.types import Trajectory
from imitation.rewards.reward_nets import CnnRewardNet
from imitation.util.logger import configure

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import ratio
from benchmarks.record import record
from rlhf_ray import envs
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments, cut_fragments
from rlhf_ray.data.fragments import Trajectory as Steps
from rlhf_ray.optim import computes_in_bfloat16
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.teachers import Oracle

SPACES: tuple[Any, Any] = (gym.spaces.Box(0, 255, (64, 64, 3), np.uint8), gym.spaces.Discrete(5))
BATCH, LENGTH = 8, 10


def clips(count: int, seed: int) -> Fragments:
    """Fragments of random actions in MovingDot."""
    env = envs.make_env("rlhf_ray/MovingDot-v0")
    env.action_space.seed(seed)
    episodes = []
    for episode in range(max(8, -(-count // 80))):
        seen, done, rewards = [env.reset(seed=1000 * seed + episode)[0]], [], []
        ended = False
        while not ended:
            done.append(env.action_space.sample())
            observation, reward, terminated, truncated, _ = env.step(done[-1])
            seen.append(observation)
            rewards.append(reward)
            ended = terminated or truncated
        episodes.append(Steps(np.stack(seen), np.array(done), np.array(rewards, np.float64), False))
    found = cut_fragments(
        episodes, length=LENGTH, count=count, start_share=0.0, policy_version=-1, rng=np.random.default_rng(seed)
    )
    assert found is not None
    return found


def comparisons(count: int, seed: int) -> Comparisons:
    """Comparisons of such fragments by an oracle."""
    pairs = Pairs.of(clips(2 * count, seed), np.arange(2 * count).reshape(count, 2))
    return Comparisons(pairs, Oracle().answer(pairs, np.random.default_rng(seed)))


def theirs(seed: int) -> CnnRewardNet:
    """Imitation's network."""
    torch.manual_seed(seed)
    return CnnRewardNet(*SPACES, hwc_format=True)


def ours(network: CnnRewardNet, precision: Any) -> RewardTrainer:
    """Our trainer with the same network."""
    settings = RewardModelSettings(
        network="pooled_cnn",
        convolutions=(32, 32),
        activation="relu",
        ensemble_size=1,
        batch_size=BATCH,
        learning_rate=1e-3,
        precision=precision,
    )
    trainer = RewardTrainer(settings, *SPACES, held_out_share=0.0, seed=0)
    for mine, other in zip(trainer.ensemble.networks.parameters(), network.parameters(), strict=True):
        mine.data.copy_(other.data)
    return trainer


def accuracy(trainer: RewardTrainer, unseen: Comparisons) -> float:
    """Share of answers that the model agrees with."""
    returns = [trainer.ensemble.fragment_returns(side).mean(0) for side in (unseen.pairs.left, unseen.pairs.right)]
    decided = unseen.preferences != 0.5
    return float((((returns[0] - returns[1]) > 0) == (unseen.preferences > 0.5))[decided].mean())


def run(arm: str, given: Comparisons, unseen: Comparisons, epochs: int, seed: int) -> dict[str, float]:
    """CPU seconds of a fit, and accuracy after it."""
    network = theirs(seed)
    gc.collect()
    if arm != "imitation":
        trainer = ours(network, arm)
        started = time.process_time()
        trainer.comparisons.add(given)
        trainer.fit(epochs * -(-len(given) // BATCH))
        return {"seconds": time.process_time() - started, "accuracy": accuracy(trainer, unseen)}
    silent = configure(tempfile.mkdtemp(prefix="imitation"), format_strs=[])
    fits: Any = pc.BasicRewardTrainer(
        pc.PreferenceModel(network),
        pc.CrossEntropyRewardLoss(),
        np.random.default_rng(seed),
        BATCH,
        epochs=epochs,
        custom_logger=silent,
    )
    sides = [
        [Trajectory(seen, done, None, False) for seen, done in zip(side.observations, side.actions, strict=True)]
        for side in (given.pairs.left, given.pairs.right)
    ]
    dataset = pc.PreferenceDataset()
    started = time.process_time()
    dataset.push(list(zip(*sides, strict=True)), given.preferences)
    fits.train(dataset)
    seconds = time.process_time() - started
    return {"seconds": seconds, "accuracy": accuracy(ours(network, "float32"), unseen)}


def learned(precision: Any, seed: int, unseen: Comparisons) -> float:
    """Accuracy of the default network after 10 passes over 300 comparisons."""
    settings = RewardModelSettings(precision=precision)
    trainer = RewardTrainer(settings, *SPACES, held_out_share=0.0, seed=seed)
    given = comparisons(300, seed)
    trainer.comparisons.add(given)
    trainer.fit(10 * -(-len(given) // settings.batch_size))
    return accuracy(trainer, unseen)


def peak(*, forget: bool = False) -> float:
    """Most memory that this process has held so far, in GB; first ``forget`` what it held before."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def memory() -> dict[str, float]:
    """Bytes of each comparison in the trainer, beside those of the different images in it; and what a fit takes, in GB."""
    given = comparisons(300, 0)
    both = np.concatenate([given.pairs.left.observations, given.pairs.right.observations])
    different = {frame.tobytes() for frame in both.reshape(-1, 64 * 64 * 3)}
    trainer = RewardTrainer(RewardModelSettings(batch_size=32), *SPACES, held_out_share=0.0, seed=0)
    trainer.comparisons.add(given)
    assert trainer.comparisons.stacked is not None
    held = trainer.comparisons.stacked.inputs["frames"].nbytes
    before = peak(forget=True)
    trainer.fit(3)
    return {
        "bytes": held / len(given),
        "raw_bytes": both.nbytes / len(given),
        "of_different_images": held / sum(map(len, different)),
        "fit_gb": peak() - before,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    outcome: dict[str, Any] = {"memory": memory()}
    print(outcome["memory"], flush=True)
    arms = ["imitation", "float32", *(["bfloat16"] if computes_in_bfloat16() else [])]
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
    unseen = comparisons(200, 99)
    for seed in range(options.rounds + 1):
        given = comparisons(32, seed)
        for arm in arms if seed % 2 else arms[::-1]:
            found[arm].append(run(arm, given, unseen, options.epochs, seed))
    for arm in arms[1:]:
        theirs, mine = ([each["seconds"] for each in found[name][1:]] for name in ("imitation", arm))
        accuracies = [each["accuracy"] for each in found[arm][1:]]
        outcome[arm] = {"times_imitation": ratio(theirs, mine), "accuracy": accuracies}
        print(arm, outcome[arm]["times_imitation"], statistics.mean(outcome[arm]["accuracy"]), flush=True)
    unseen = comparisons(500, 99)
    for precision in arms[1:]:
        outcome[precision]["default_network_accuracy"] = [
            learned(precision, seed, unseen) for seed in range(options.rounds)
        ]
        print(precision, outcome[precision]["default_network_accuracy"], flush=True)
    outcome["imitation"] = {"accuracy": [each["accuracy"] for each in found["imitation"][1:]]}
    outcome["rounds"] = found
    if options.rounds >= 8:
        record("pixels", outcome)


if __name__ == "__main__":
    main()
