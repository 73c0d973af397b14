"""Offline: fit a reward model to stored comparisons and measure it on held-out ones. No Ray, no training.

    pip install /path/to/rlhf_ray
    python examples/offline_from_store.py [STORE]

STORE is a preference store about Pendulum: of `rlhf-ray label pendulum --store STORE`, say, or the folder `preferences` of a run.
Without one, the script first makes a store in a temporary folder: 300 comparisons of random actions, answered by a scripted
teacher. In 15 seconds the reward model gets more than nine in ten held-out comparisons right, and its rewards correlate with the
true ones by more than 0.9.
"""

import sys
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np

import rlhf_ray as rr

env, rng = gym.make("Pendulum-v1"), np.random.default_rng(0)
env.action_space.seed(0)
folder = Path(tempfile.mkdtemp(prefix="rlhf_ray-"))


def play(episodes: int, seed: int) -> list[rr.Trajectory]:
    """Episodes of random actions."""
    return [rr.rollout(env, lambda _: env.action_space.sample(), seed=seed + i).trajectory for i in range(episodes)]


# 1. The store.
path = Path(sys.argv[1]) if len(sys.argv) > 1 else folder / "store"
if not path.exists():
    clips = rr.cut_fragments(play(40, 0), length=10, count=600, start_share=0.0, policy_version=-1, rng=rng)
    pairs = rr.Pairs.of(clips, np.arange(600).reshape(300, 2))
    rr.Store(path).commit(rr.Comparisons(pairs, rr.Oracle().answer(pairs, rng)), annotator="oracle")

# 2. The reward model. Which tenth is held out is decided by the comparisons' ids: the same ones every time.
reward, report = rr.fit(path, env.observation_space, env.action_space, held_out_share=0.1)
print(f"{report.comparisons} comparisons, {report.held_out} of them held out")
print(
    f"held-out accuracy: {report.held_out_accuracy:.2f} of {report.held_out_decided} (train: {report.train_accuracy:.2f})"
)

# 3. Saved, loaded, and asked about steps that nobody has labelled. `rlhf-ray train pendulum --reward-from FOLDER` trains on it.
reward.save(folder / "reward_model")
reward = rr.RewardEnsemble.load(folder / "reward_model")
steps = play(5, 1000)
learned = [reward.predict(t.observations[:-1], t.actions, t.observations[1:], np.zeros(len(t), bool)) for t in steps]
true = [t.rewards for t in steps]
print(f"correlation with the true reward: {np.corrcoef(np.concatenate(learned), np.concatenate(true))[0, 1]:.2f}")
print(f"reward model: {folder / 'reward_model'}")
