"""One run of imitation 1.0.1's preference comparisons, with the settings that its documentation gives.

    python benchmarks/imitation_agent.py Pendulum-v1 --steps 100000 --comparisons 200 --seed 0 --run-dir runs/imitation

Where from: the page "Preference comparisons" of its documentation for everything but PPO's settings, which are that page's for
Pendulum and those that imitation's own experiments were tuned with for the others (`VALUES`). ``--normalise`` puts a
`NormalizedRewardNet` around the reward, as its command line does by default and its documentation page does not.

``--steps`` are the steps that PPO trains for, rounded up to whole iterations; those in which imitation only samples trajectories
for fragments come on top, and are counted in the result. The policy at the end is evaluated on the true reward: it draws Discrete
actions, as in training, and takes the most probable of others.
Writes ``result.json`` to the folder.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
import rlhf_ray.envs  # noqa: F401  registers our environments with gymnasium
from rlhf_ray.data.comparisons import spread_of
from rlhf_ray.teachers.annotators import ERROR, ERROR_SCALE

ENVIRONMENTS = 8

NAMES = "rollout batch_size clip_range ent_coef gae_lambda gamma learning_rate max_grad_norm n_epochs vf_coef"
VALUES = """
Pendulum-v1                2048 64  0.1 0.01                  0.95 0.97  2e-3                  -   10 -
rlhf_ray/CartPoleFixed-v0  2048 64  0.1 0.0                   -    0.95  5e-4                  -   5  0.1
rlhf_ray/HopperFixed-v0    2048 512 0.1 0.0010159833764878474 0.98 0.995 0.0003904770450788824 0.9 20 0.20315938606555833
HalfCheetah-v5             512  64  0.1 3.794797423594763e-06 0.95 0.95  0.0003286871805949382 0.8 5  0.11483689492120866
rlhf_ray/Walker2dFixed-v0  8192 128 0.4 0.00013057334805552262 0.92 0.98 0.000138575372312869  0.6 20 0.6167177795726859
Swimmer-v5                 2048 64  0.1 5.167107294612664e-08 0.95 0.999 0.000414936134792374  2   5  0.6162112311062333
"""
"""PPO by environment, "-" where SB3's default counts. Pendulum: the documentation's page. CartPole: examples/1_train_bc.ipynb and
those that follow, the expert on seals/CartPole-v0, the same task. The others: the named configurations seals_hopper,
seals_half_cheetah, seals_walker and seals_swimmer of imitation.scripts.config.train_preference_comparisons. Any other environment:
as Pendulum."""


def ppo_settings(environment: str) -> dict[str, Any]:
    """PPO's settings, with the steps of a rollout (``rollout``)."""
    rows = {row[0]: row[1:] for row in map(str.split, VALUES.strip().splitlines())}
    values = zip(NAMES.split(), rows.get(environment, rows["Pendulum-v1"]), strict=True)
    return {name: json.loads(value) for name, value in values if value != "-"}


FRAGMENT_LENGTH = 100
"""The documentation's; an environment with shorter episodes (Reacher: 50 steps) has whole episodes instead."""

PLAIN_POLICY = ("rlhf_ray/CartPoleFixed-v0",)
"""Environments whose policy sees observations as they are, as in those examples: normalised ones end in failure here."""


def horizon(environment: str) -> int:
    """Steps of its longest episodes."""
    return gym.spec(environment).max_episode_steps or FRAGMENT_LENGTH


class StepCount(gym.Wrapper[Any, Any, Any, Any]):
    """Counts the steps of all environments."""

    total = 0

    def step(self, action: Any) -> Any:
        """Count one."""
        StepCount.total += 1
        return super().step(action)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--comparisons", type=int, required=True)
    parser.add_argument(
        "--iterations", type=int, default=60, help='the documentation: "set to 60 for better performance"'
    )
    parser.add_argument("--normalise", action="store_true")
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 32], help="units of the reward's layers")
    parser.add_argument(
        "--teacher", choices=("oracle", "mistake", "human_like"), default="oracle", help="ours, see --mistake"
    )
    parser.add_argument("--mistake", type=float, default=0.1, help="share of wrong answers of --teacher mistake")
    parser.add_argument("--noise", type=float, default=0.0, help="noise_prob of imitation's PreferenceModel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--run-dir", type=Path, required=True)
    options = parser.parse_args()

    from imitation.algorithms import preference_comparisons as pc
    from imitation.policies.base import FeedForward32Policy, NormalizeFeaturesExtractor
    from imitation.rewards.reward_nets import BasicRewardNet, NormalizedRewardNet
    from imitation.util.networks import RunningNorm
    from imitation.util.util import make_vec_env
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.ppo import MlpPolicy

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    venv = make_vec_env(
        options.environment, rng=rng, n_envs=ENVIRONMENTS, post_wrappers=[lambda env, _: StepCount(env)]
    )
    spaces = venv.observation_space, venv.action_space
    network = BasicRewardNet(*spaces, hid_sizes=options.hidden, normalize_input_layer=RunningNorm)
    reward = NormalizedRewardNet(network, RunningNorm) if options.normalise else network
    model = pc.PreferenceModel(network, noise_prob=options.noise)
    normalising = {
        "features_extractor_class": NormalizeFeaturesExtractor,
        "features_extractor_kwargs": {"normalize_class": RunningNorm},
    }
    plain = options.environment in PLAIN_POLICY
    of_ppo = ppo_settings(options.environment)
    rollout = of_ppo.pop("rollout")
    agent = PPO(
        policy=MlpPolicy if plain else FeedForward32Policy,
        policy_kwargs=None if plain else normalising,
        env=venv,
        n_steps=rollout // ENVIRONMENTS,
        seed=options.seed,
        **of_ppo,
    )
    # imitation calls PPO once more than it has iterations, and PPO rounds each call up to whole rollouts.
    each = rollout * math.ceil(options.steps / (options.iterations + 1) / rollout)
    iterations = math.ceil(options.steps / each) - 1
    training = pc.PreferenceComparisons(
        pc.AgentTrainer(algorithm=agent, reward_fn=reward, venv=venv, exploration_frac=0.05, rng=rng),
        network,
        num_iterations=iterations,
        fragmenter=pc.RandomFragmenter(warning_threshold=0, rng=rng),
        preference_gatherer=gatherer_of(options, rng),
        reward_trainer=pc.BasicRewardTrainer(
            preference_model=model, loss=pc.CrossEntropyRewardLoss(), epochs=10, rng=rng
        ),
        fragment_length=min(FRAGMENT_LENGTH, horizon(options.environment)),
        transition_oversampling=1,
        initial_comparison_frac=0.1,
        initial_epoch_multiplier=4,
        query_schedule=_never_zero(options.comparisons, iterations),
    )
    training.train(total_timesteps=each * iterations, total_comparisons=options.comparisons)
    evaluated = make_vec_env(options.environment, rng=np.random.default_rng(options.seed + 10_000), n_envs=ENVIRONMENTS)
    best = not isinstance(evaluated.action_space, gym.spaces.Discrete)
    mean, deviation = evaluate_policy(agent.policy, evaluated, options.episodes, deterministic=best)
    options.run_dir.mkdir(parents=True, exist_ok=True)
    result = {
        "environment": options.environment,
        "seed": options.seed,
        "env_steps": StepCount.total,
        "trained_steps": agent.num_timesteps,
        "comparisons": len(training.dataset),
        "random": None,
        "reference": None,
        "trained": {"true_return_mean": float(mean), "true_return_std": float(deviation), "episodes": options.episodes},
    }
    (options.run_dir / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(result)


def gatherer_of(options: Any, rng: np.random.Generator) -> Any:
    """Make imitation's own gatherer, which draws answers from returns, or one with our teacher's errors.

    imitation has no skips: who is human-like answers pairs that he would skip, with the errors that he would make.
    """
    from imitation.algorithms import preference_comparisons as pc

    if options.teacher == "oracle":
        return pc.SyntheticGatherer(rng=rng)

    class Erring(pc.PreferenceGatherer):  # type: ignore[misc, name-defined]
        """Prefers the larger return, but for the teacher's errors."""

        def __call__(self, fragment_pairs: Any) -> Any:
            """See imitation."""
            returns = np.array([[np.sum(side.rews) for side in pair] for pair in fragment_pairs])
            apart = np.abs(returns[:, 0] - returns[:, 1])
            wrong = np.full(len(apart), options.mistake)
            if options.teacher == "human_like":
                wrong = ERROR * np.exp(-apart / spread_of(returns.ravel()) / ERROR_SCALE)
            preferred = (returns[:, 0] > returns[:, 1]) ^ (rng.random(len(apart)) < wrong)
            return preferred.astype(np.float32)

    return Erring(rng=rng)


def _never_zero(comparisons: int, iterations: int) -> Any:
    """The hyperbolic schedule, and a little for each iteration: without, imitation crashes where an iteration asks nothing."""
    least = 1.5 * iterations / max(1.0, 0.9 * comparisons)
    return lambda t: max(1.0 / (1.0 + t), least)


if __name__ == "__main__":
    main()
