"""Reward model settings compared without an agent: a finished run's answers, learned from again, a round at a time.

After each round, the reward model is asked about the next rounds' questions, whose true returns are known, and its rewards of
their steps are compared with those of the round before. A minute for a setting instead of hours, but the questions stay those of
the run's own agent, which another reward model would have led elsewhere.

    python benchmarks/replay.py RUN "{}" '{"weight_decay": 10}' '{"weight_decay": 10, "bootstrap": false}'

RUN is a run folder with vector observations and a scripted teacher; each JSON object is a change of its reward model's settings.
Methods that learn from pairs without answers (SURF) go without them. Each line has the means over the later half of the fits, and
how steady rewards are from fit to fit: the mean over all fits, and the least.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.envs import make_env
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.settings.experiment import from_json, to_json
from rlhf_ray.store import PreferenceStore

AHEAD = 2
"""Rounds whose questions judge a fit."""


def main() -> None:
    """Print a line for each change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("changes", nargs="+", type=json.loads)
    parser.add_argument("--first", type=int, default=100, help="answers before the first fit")
    parser.add_argument("--round", type=int, default=50, help="answers of a later round")
    parser.add_argument("--most", type=int, default=1_000, help="answers in all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = RunFolder(options.run)
    experiment = run.experiment()
    answers = PreferenceStore(options.run / "preferences", create=False).load()
    if answers is None or len(answers) < options.first + (AHEAD + 2) * options.round:
        count = 0 if answers is None else len(answers)
        parser.error(f"{options.run} has {count} answers, too few for two fits: lower --first or --round.")
    env = make_env(experiment.environment)
    assert isinstance(env.observation_space, gym.spaces.Box)
    rounds = [*range(options.first, min(len(answers), options.most) - AHEAD * options.round, options.round)]
    for change in options.changes:
        settings = from_json(RewardModelSettings, {**to_json(experiment.reward_model), **change})
        trainer = RewardTrainer(settings, env.observation_space, env.action_space, held_out_share=0.1, seed=0)
        rows = _replay(trainer, answers, rounds, AHEAD * options.round)
        half = rows[len(rows) // 2 :]
        steady = [row["steady"] for row in rows if row["steady"] is not None]
        means = {
            name: round(float(np.mean([row[name] for row in half])), 3) for name in ("accuracy", "returns", "steps")
        }
        print(
            json.dumps({**change, **means, "steady": round(float(np.mean(steady)), 3), "least": round(min(steady), 3)}),
            flush=True,
        )
    env.close()  # type: ignore[no-untyped-call]


def _replay(
    trainer: RewardTrainer, answers: Comparisons, rounds: list[int], ahead: int
) -> list[dict[str, float | None]]:
    """Fit after each round.

    Returns:
        for each round, on the questions that come next: the share whose better fragment the model knows (accuracy), the
        correlation of its returns, and of its rewards of steps, with the true ones, and that of its rewards of steps with the
        ones before the fit (steady).
    """
    done, rows = 0, []
    for until in rounds:
        asked = answers[np.arange(until, until + ahead)]
        before = step_rewards(trainer.ensemble, asked) if done else None
        trainer.comparisons.add(answers[np.arange(done, until)])
        trainer.fit(trainer.settings.updates if done else trainer.settings.initial_updates)
        done = until
        rewards = step_rewards(trainer.ensemble, asked)
        sides = asked.pairs.left, asked.pairs.right
        true = np.stack([side.rewards for side in sides])
        returns = np.stack([trainer.ensemble.fragment_returns(side).mean(0) for side in sides])
        true_returns = true.sum(2)
        decided = true_returns[0] != true_returns[1]
        right = (returns[0] > returns[1]) == (true_returns[0] > true_returns[1])
        rows.append(
            {
                "accuracy": float(right[decided].mean()),
                "returns": pearson(returns.ravel(), true_returns.ravel()),
                "steps": pearson(rewards, true.ravel()),
                "steady": None if before is None else pearson(before, rewards),
            }
        )
    return rows


def step_rewards(ensemble: RewardEnsemble, asked: Comparisons) -> FloatArray:
    """The model's rewards of all steps, left fragments first."""
    rewards = [_rewards_of(ensemble, side) for side in (asked.pairs.left, asked.pairs.right)]
    return np.concatenate(rewards)


def _rewards_of(ensemble: RewardEnsemble, fragments: Fragments) -> FloatArray:
    observations, actions = fragments.observations, fragments.actions
    before, after = (part.reshape(-1, part.shape[-1]) for part in (observations[:, :-1], observations[:, 1:]))
    return ensemble.predict(before, actions.reshape(len(before), -1), after, np.zeros(len(before), bool))


if __name__ == "__main__":
    main()
