"""Procgen, hard levels: an expert as published (`hard-500` of the train-procgen code): 256 environments, 200,000,000 steps.

For `rlhf-ray train procgen_hard_500 --true-reward` and then `rlhf-ray record`; without --true-reward, it learns from
comparisons with the same policy settings. Choose the game with --environment procgen/GAME-hard. What RLlib does otherwise than the
published code: `rlhf_ray.rllib.reference`. Needs a GPU; a million steps take hours on a CPU.
"""

from rlhf_ray import settings
from rlhf_ray.tune_configs import coinrun


def procgen(
    mode: str, num_envs: int, total_env_steps: int, memory: settings.PolicyMemory = "none"
) -> settings.Experiment:
    """Return the published settings, in which the number of environments varies and each iteration has 8 minibatches.

    Args:
        mode: "easy" or "hard".
        num_envs: environments, each of which takes 256 steps per iteration.
        total_env_steps: the published budget.
        memory: the policy's memory, of 64 units. With it, the encoder has 64 features, as in the published recurrent agents.
    """
    ppo = settings.PPOSettings(
        network="impala",
        features=None if memory == "none" else 64,
        memory=memory,
        memory_units=64,
        num_envs=num_envs,
        rollout_length=256,
        minibatch_size=num_envs * 256 // 8,
        epochs=3,
        learning_rate=5e-4,
        final_learning_rate=0.0,  # linear decay
        gamma=0.999,
        gae_lambda=0.95,
        clip=0.2,
        kl_target=None,
        entropy_coefficient=0.01,
        value_coefficient=0.25,  # published: 0.5, of half the squared error; RLlib's loss has no half
        max_grad_norm=0.5,
    )
    return coinrun.experiment.changed(environment=f"procgen/coinrun-{mode}", total_env_steps=total_env_steps, ppo=ppo)


experiment = procgen("hard", num_envs=256, total_env_steps=200_000_000)
