"""Pong (Atari): 5,500 comparisons, 10,000,000 environment steps, with the settings of Christiano et al. 2017 (appendix A).

The paper's agent is A2C over 50 million steps; here it is PPO with its published Atari settings (Schulman et al. 2017, table 5),
and a fifth of the steps: both are marked. What names no source is our own choice and was not tuned. The clips take 8 GB of disk.
Days on a CPU: for a machine with a GPU, or rollouts on several nodes (`--ppo.num-env-runners`).
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
    # 84x84, grey, four frames stacked, the score black and no end of a game to be seen (the paper).
    environment="rlhf_ray/Pong-v0",
    total_env_steps=10_000_000,  # a fifth of the paper's
    fragments=FragmentSettings(
        length=25,  # the paper: 1.7 s
        initial_env_steps=25_600,  # enough for 1,000 clips that do not overlap: two for each of the first comparisons
        pool=1_000,
    ),
    preferences=PreferenceSettings(
        comparisons=5_500,  # the paper
        initial_comparisons=500,  # the paper
        rounds=500,  # one before about every twentieth iteration, of about ten comparisons
        # The paper: a rate proportional to 5e6/(T + 5e6), which is 1/(1 + 2t) over ten million steps.
        schedule="hyperbolic",
        steepness=2.0,
        selection="disagreement",  # the paper
        oversampling=10,  # the paper
    ),
    reward_model=RewardModelSettings(
        hidden=(64,),  # the paper; its four convolutions are two here, without batch norm and dropout
        activation="leaky_relu",  # the paper
        ensemble_size=3,  # the paper
        window=3_000,  # the paper fits to the newest 3,000 labels
        learning_rate=3e-4,
        initial_updates=500,
        updates=50,
    ),
    ppo=PPOSettings(
        network="nature",
        num_envs=8,  # PPO's paper, as all below
        rollout_length=128,
        minibatch_size=256,
        epochs=3,
        learning_rate=2.5e-4,
        final_learning_rate=0.0,
        gamma=0.99,
        gae_lambda=0.95,
        clip=0.1,
        entropy_coefficient=0.01,  # both papers
        value_coefficient=1.0,
    ),
    labelling=LabellingSettings(
        instructions=(
            "Prefer the clip where the right paddle scores or returns the ball. The goal: win points. "
            "Missing the ball is worst."
        )
    ),
)


def search_space() -> dict[str, Any]:
    """What `rlhf-ray tune pong` varies."""
    from ray import tune  # imports much that training has no use for

    return {
        "ppo.learning_rate": tune.loguniform(1e-4, 1e-3),  # around PPO's 2.5e-4; the paper's A2C has 7e-4
        "ppo.entropy_coefficient": tune.choice([0.003, 0.01, 0.03]),  # around both papers'
        "reward_model.learning_rate": tune.loguniform(1e-4, 1e-3),
        "reward_model.updates": tune.choice([25, 50, 100]),
        "reward_model.weight_decay": tune.loguniform(1e-3, 1e-1),  # the paper adapts its L2 to the held-out loss
    }
