"""The default reward model beside the best of twelve MLPs: finished runs' answers, fitted again on two of three parts.

    python benchmarks/default_reward.py RUN...     # writes benchmarks/results/default_reward.json

Each RUN is a run folder with vector observations, of a scripted teacher. The defaults, and MLPs of twelve settings (six weight
decays, with and without the action), are fitted to two thirds of the answers each. Their rewards of the steps of the other third
are correlated with the true ones, part by part. Which MLP is best is known only from the true rewards.
`benchmarks/page_tables.py` makes the table.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import dataclasses
import json
import math
import sys
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import RESULTS, record
from benchmarks.replay import step_rewards
from rlhf_ray.envs import make_env
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.store import PreferenceStore

NAME = "default_reward"
PARTS, STEPS = 3, 600
"""Parts of the answers; and gradient steps of a fit."""
DECAYS = (0.01, 0.3, 1.0, 3.0, 10.0, 30.0)
CHANGES: dict[str, dict[str, Any]] = {"default": {}} | {
    f"{decay:g}, {'with' if action else 'without'} action": {
        "network": "mlp",
        "weight_decay": decay,
        "use_action": action,
    }
    for decay, action in product(DECAYS, (True, False))
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{NAME}.json"
    rows: dict[str, Any] = json.loads(path.read_text())["runs"] if path.exists() else {}
    for run in options.runs:
        experiment = RunFolder(run).experiment()
        teacher = experiment.preferences.teacher
        wrong = experiment.preferences.mistake if teacher == "mistake" else 0.0
        told = {"human_like": "human-like"}.get(teacher, f"{100 * wrong:.0f} % wrong" if wrong else "none wrong")
        key = f"{experiment.environment}/{told}/{experiment.seed}"
        rows[key] = correlations(run)
        record(NAME, {"command": f"python benchmarks/{NAME}.py RUN...", "runs": rows})
        print(key, rows[key], flush=True)


def correlations(run: Path) -> dict[str, list[float]]:
    """The correlation of each setting's rewards of steps with the true ones, for each part; 0 of rewards that are all the same."""
    experiment = RunFolder(run).experiment()
    answers = PreferenceStore(run / "preferences", create=False).load()
    assert answers is not None
    env = make_env(experiment.environment)
    assert isinstance(env.observation_space, gym.spaces.Box)
    part = np.random.default_rng(0).permutation(len(answers)) % PARTS
    found: dict[str, list[float]] = {}
    for name, changes in CHANGES.items():
        settings = dataclasses.replace(experiment.reward_model, **changes)
        found[name] = [_correlation(settings, env, answers, part, held) for held in range(PARTS)]
    env.close()  # type: ignore[no-untyped-call]
    return found


def _correlation(settings: RewardModelSettings, env: Any, answers: Any, part: Any, held: int) -> float:
    spaces = env.observation_space, env.action_space
    trainer = RewardTrainer(settings, *spaces, held_out_share=0.0, seed=held)
    trainer.comparisons.add(answers[np.flatnonzero(part != held)])
    trainer.fit(STEPS)
    asked = answers[np.flatnonzero(part == held)]
    true = np.concatenate([side.rewards.ravel() for side in (asked.pairs.left, asked.pairs.right)])
    found = pearson(step_rewards(trainer.ensemble, asked), true)
    return 0.0 if math.isnan(found) else round(found, 3)


if __name__ == "__main__":
    main()
