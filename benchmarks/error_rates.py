"""Error rates that a run tells of answers, beside the true ones: an oracle's answers with a known share turned round.

The questions of a short training of each preset are answered anew, each answer turned round with a probability of 0 to 30 %, and
fitted in rounds as a training does it. After each fit, the estimate of all answers' error rate is compared with the share that was
turned round: how far it is off, how often its 95 % interval holds that share, what it says, and what the next fit's likelihood
assumes. The constants of `rlhf_ray.reward.annotators` were chosen on other seeds, without CartPole.

    python benchmarks/error_rates.py        # 10 minutes; writes benchmarks/results/error_rates.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import dataclasses
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import ROOT, record
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.envs import make_env
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.store import PreferenceStore

PRESETS = ("pendulum", "reacher_sac", "cartpole")
ERRORS = (0.0, 0.1, 0.2, 0.3)
SEEDS = (100, 101, 102)
QUESTIONS, STEPS = 300, 30_000
FIRST, LATER = 400, 300
"""Gradient steps of the first fit, and of later ones: those of five rounds of a training."""


def main() -> None:
    """Run the benchmark."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for preset in PRESETS:
        with tempfile.TemporaryDirectory(prefix="error_rates") as folder:
            words = ("--total-env-steps", str(STEPS), "--preferences.comparisons", str(QUESTIONS), "--seed", "50")
            command = [sys.executable, "-m", "rlhf_ray", "train", preset, *words, "--run-dir", f"{folder}/run"]
            subprocess.run([*command, "--evaluation-episodes", "1"], cwd=ROOT, check=True, capture_output=True)
            experiment = RunFolder(Path(folder, "run")).experiment()
            right = PreferenceStore(Path(folder, "run/preferences"), create=False).load()
            assert right is not None
            env = make_env(experiment.environment)
            spaces = env.observation_space, env.action_space
            env.close()  # type: ignore[no-untyped-call]
            for errors in ERRORS:
                fits = [fit for seed in SEEDS for fit in _fits(right, spaces, experiment.reward_model, errors, seed)]
                rows.append({"preset": preset, "errors": errors, **_summary(fits)})
                print(rows[-1], flush=True)
    record("error_rates", {"questions": QUESTIONS, "seeds": SEEDS, "rows": rows})


def _fits(
    right: Comparisons,
    spaces: tuple[gym.Space[Any], gym.Space[Any]],
    settings: RewardModelSettings,
    errors: float,
    seed: int,
) -> list[dict[str, Any]]:
    """Fit in seven rounds; return what is told after each, and the share that was turned round."""
    turned = np.random.default_rng(seed).random(len(right)) < errors
    answers = dataclasses.replace(
        right, preferences=np.where(turned, 1 - right.preferences, right.preferences).astype(np.float32)
    )
    observation_space, action_space = spaces
    assert isinstance(observation_space, gym.spaces.Box)
    trainer = RewardTrainer(settings, observation_space, action_space, held_out_share=0.1, seed=seed)
    done, found = 0, []
    for until in np.linspace(len(right) // 4, len(right), 7).astype(int):
        trainer.comparisons.add(answers[np.arange(done, until)])
        report = trainer.fit(LATER if done else FIRST)
        done = int(until)
        decided = right.preferences[:done] != 0.5
        if report.wrong is not None and decided.any():
            share = float(turned[:done][decided].mean())
            assumed = float(np.mean(list(report.assumed.values())))
            found.append({"share": share, "told": report.wrong, "assumed": assumed})
    return found


def _summary(fits: list[dict[str, Any]]) -> dict[str, Any]:
    inside = [fit["told"].low - 0.005 <= fit["share"] <= fit["told"].high + 0.005 for fit in fits]
    return {
        "fits": len(fits),
        "told_less_true": round(float(np.mean([fit["told"].rate - fit["share"] for fit in fits])), 3),
        "assumed_less_true": round(float(np.mean([fit["assumed"] - fit["share"] for fit in fits])), 3),
        "interval_holds": round(float(np.mean(inside)), 2),
        "interval_width": round(float(np.mean([fit["told"].high - fit["told"].low for fit in fits])), 2),
        "says": dict(Counter(fit["told"].kind for fit in fits)),
    }


if __name__ == "__main__":
    main()
