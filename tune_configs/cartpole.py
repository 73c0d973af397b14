"""CartPoleFixed: keep the pole up for 500 steps that never end early; 200 comparisons, 200,000 environment steps."""

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
    environment="rlhf_ray/CartPoleFixed-v0",
    total_env_steps=200_000,
    # A fallen pole never rises again, and two clips of fallen poles are a tie: half of the clips are episode beginnings.
    fragments=FragmentSettings(length=25, start_share=0.5, initial_env_steps=4_000, pool=200),
    # A reward that is right early decides the outcome, and late clips of an agent that balances are ties: most labels come early.
    preferences=PreferenceSettings(
        comparisons=200, rounds=97, schedule="hyperbolic", steepness=6.0, selection="random"
    ),
    reward_model=RewardModelSettings(
        hidden=(64, 64), activation="tanh", learning_rate=1e-3, initial_updates=200, updates=20
    ),
    ppo=PPOSettings(
        num_envs=4,
        rollout_length=500,  # one episode
        minibatch_size=256,
        epochs=10,
        learning_rate=1e-3,
        final_learning_rate=0.0,
        gamma=0.98,
    ),
    labelling=LabellingSettings(
        instructions=(
            "Prefer the pole that stays more upright, with its cart on the white track. The goal: balance to the end. "
            "If both fall: the later fall."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """What `rlhf-ray tune cartpole` varies."""
    from ray import tune  # imports much that training has no use for

    return {
        "fragments.start_share": tune.choice([0.0, 0.25, 0.5]),  # see above: late clips of a good agent are ties
        "preferences.selection": tune.choice(["random", "disagreement"]),
        "ppo.learning_rate": tune.loguniform(3e-4, 3e-3),  # what decides most in PPO
        "reward_model.learning_rate": tune.loguniform(3e-4, 3e-3),  # AdamW's usual 1e-3, three times either side
    }
