"""CoinRun (procgen, easy levels): run and jump to the coin; 2,000 comparisons, 25,000,000 environment steps.

The policy's network and PPO's settings are those published with procgen (Cobbe et al. 2020, appendix D). Days on a CPU: for a
machine with a GPU. For a look at it, `--total-env-steps 200000 --ppo.num-envs 16 --ppo.network nature`.
"""

from __future__ import annotations

from typing import Any

from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    LabellingSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
)

experiment = Experiment(
    environment="procgen/coinrun-easy",
    total_env_steps=25_000_000,  # procgen's paper, for easy levels
    # The game rewards the coin alone, which hardly any clip of an agent that knows nothing holds: nearly all of the first answers
    # are ties. Longer clips hold more coins, but episodes that are shorter than a clip are lost, and good agents' are short.
    fragments=FragmentSettings(length=25, initial_env_steps=100_000, pool=1_000),
    preferences=PreferenceSettings(
        comparisons=2_000,
        rounds=200,
        # An episode ends at the coin, at a hazard or at the time limit: its length tells, and there is no way around it.
        allow_variable_horizon=True,
    ),
    reward_model=RewardModelSettings(
        # The coin is reached in the last step, and only the state after it would show it: procgen does not draw that one.
        use_done=True,
        activation="leaky_relu",
        learning_rate=1e-3,
        initial_updates=500,
        updates=50,
    ),
    # All of it procgen's paper.
    ppo=PPOSettings(
        network="impala",
        num_envs=64,
        rollout_length=256,
        minibatch_size=2_048,  # 8 minibatches
        epochs=3,
        learning_rate=5e-4,
        gamma=0.999,
        gae_lambda=0.95,
        clip=0.2,
        entropy_coefficient=0.01,
        value_coefficient=0.5,
        max_grad_norm=0.5,
    ),
    labelling=LabellingSettings(
        instructions=(
            "Prefer the clip that takes the coin, or gets further right, towards it. The goal: the coin. "
            "A saw, a monster or lava is worst."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """What `rlhf-ray tune coinrun` varies."""
    from ray import tune  # imports much that training has no use for

    return {
        "fragments.length": tune.choice([25, 50, 100]),  # see above: whether clips hold coins
        "preferences.selection": tune.choice(["random", "disagreement"]),
        "ppo.learning_rate": tune.loguniform(1e-4, 1e-3),  # around procgen's 5e-4
        "reward_model.learning_rate": tune.loguniform(3e-4, 3e-3),
    }
