"""A whole run folder, made up with the real classes."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import RANDOM_POLICY, cut_fragments
from rlhf_ray.data.metrics import plain
from rlhf_ray.envs import make_env
from rlhf_ray.queries.selection import random_pairs
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.settings import Experiment, PPOSettings, PreferenceSettings, RewardModelSettings, save_experiment
from rlhf_ray.store import PreferenceStore
from rlhf_ray.teachers import Oracle
from tests.made_up import played_at_random

ROUNDS, PER_ROUND, STEPS_PER_ROUND = 6, 6, 2_000


ABOUT = {
    "format": "rlhf_ray.run/2",
    "started": "2026-03-09T17:05:00+01:00",
    "finished": "2026-03-09T16:17:00+00:00",
    "interrupted": False,
    "command": "rlhf-ray train --environment 'A & B'",
    "versions": {"rlhf_ray": "0.1.0", "ray": "2.60.0", "python": "3.11.9"},
    "machine": {"cpus": 2, "platform": "Linux-6.1-x86_64"},
}


RESULT = {
    "env_steps": 12_000,
    "comparisons": 36,
    "held_out_accuracy": 0.875,
    "random": {"true_return_mean": -1234.5, "true_return_std": 310.0, "episodes": 20},
    "trained": {"true_return_mean": -187.25, "true_return_std": 101.5, "episodes": 20},
    "reference": {"true_return_mean": -151.75, "true_return_std": 88.0, "episodes": 20},
    "normalised": 0.967,
    "train_seconds": 725.0,
    "interrupted": False,
}


def make_run(folder: Path, environment: str, settings: RewardModelSettings, length: int) -> None:
    """A whole run folder, made as a run makes it, whose policy acts at random, except that the numbers say that it learns."""
    preferences = PreferenceSettings(comparisons=ROUNDS * PER_ROUND, initial_comparisons=PER_ROUND, rounds=ROUNDS - 1)
    of = {"preferences": preferences, "reward_model": settings, "ppo": PPOSettings(num_envs=8, minibatch_size=128)}
    experiment = Experiment(environment, total_env_steps=ROUNDS * STEPS_PER_ROUND, seed=3, **of)  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    save_experiment(experiment, folder / "config.json")
    (folder / "run.json").write_text(json.dumps(ABOUT))
    (folder / "result.json").write_text(json.dumps(RESULT | {"environment": environment, "seed": 3}))
    env, rng, store = make_env(environment), np.random.default_rng(0), PreferenceStore(folder / "preferences")
    trainer = RewardTrainer(settings, env.observation_space, env.action_space, held_out_share=0.2, seed=0)
    lines = []
    for round_number in range(ROUNDS):
        fragments = cut_fragments(
            played_at_random(environment, range(3 * round_number, 3 * round_number + 3), 60),
            length=length,
            count=2 * PER_ROUND,
            start_share=0.25,
            policy_version=RANDOM_POLICY if round_number == 0 else round_number,
            rng=rng,
        )
        assert fragments is not None
        pairs = Pairs.of(fragments, random_pairs(len(fragments), PER_ROUND, rng), round_number)
        comparisons = Comparisons(pairs, Oracle().answer(pairs, rng))
        comparisons.preferences[0] = 0.5  # a tie in each round
        store.commit(comparisons, annotator="oracle")
        trainer.comparisons.add(comparisons)
        fit = trainer.fit(settings.updates)
        for i in (0, 1):
            iteration = 2 * round_number + i + 1
            progress = iteration / (2 * ROUNDS)
            row: dict[str, Any] = {
                "iteration": iteration,
                "env_steps": iteration * STEPS_PER_ROUND // 2,
                "comparisons": (round_number + 1) * PER_ROUND,
                "seconds": 60.0 * iteration,
                "true_return_mean": None if iteration == 1 else -1200 + 1050 * math.tanh(2.5 * progress),
                "learned_return_mean": 40 * progress + 6 * math.sin(iteration),
                "episode_length_mean": None if iteration == 1 else 200.0,
                "learned_reward_mean": 0.2 * progress,
                "reward_version": fit.version,
                "policy_entropy": 1.42 - progress,
                "value_explained_variance": 0.9 * progress,
                "too_short": iteration // 4,
                "fragments_failed": 1 if iteration == 5 else 0,
            }
            if i == 0:
                held = dataclasses.asdict(fit)
                held |= {"round": round_number, "wanted": PER_ROUND, "answered": PER_ROUND - (round_number == 2)}
                row |= {"fit_seconds": held.pop("seconds")} | {k: v for k, v in held.items() if k != "comparisons"}
            lines.append(json.dumps(plain(row)))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    trainer.ensemble.save(folder / "reward_model")
