"""CoinRun (Procgen, easy levels): run and jump to the coin; 2,000 comparisons, 25,000,000 environment steps.

The policy network and PPO settings are those of the Procgen paper (Cobbe et al. 2020, appendix D). Needs a GPU; takes days on a
CPU. For a quick try: `--total-env-steps 200000 --ppo.num-envs 16 --ppo.network nature`.
"""

from rlhf_ray import settings

experiment = settings.Experiment(
    environment="procgen/coinrun-easy",
    total_env_steps=25_000_000,  # Procgen paper, easy levels
    # The game rewards only the coin, and hardly any fragment of an untrained agent contains it: nearly all of the first answers are
    # ties. Longer fragments contain more coins, but episodes shorter than a fragment are lost, and good agents' episodes are short.
    fragments=settings.FragmentSettings(length=25, initial_env_steps=100_000, pool=1_000),
    preferences=settings.PreferenceSettings(
        comparisons=2_000,
        initial_comparisons=0.25,
        rounds=200,
        schedule="constant",  # early fragments have no coins
        # An episode ends at the coin, at a hazard or at the time limit, so its length unavoidably leaks reward information.
        allow_variable_horizon=True,
    ),
    reward_model=settings.RewardModelSettings(
        # The agent reaches the coin in the last step, but Procgen does not render the state after it.
        use_done=True,
        activation="leaky_relu",
        learning_rate=1e-3,
        weight_decay=0.01,
        initial_updates=500,
        updates=50,
    ),
    # All from the Procgen paper.
    ppo=settings.PPOSettings(
        network="impala",
        num_envs=64,
        rollout_length=256,
        minibatch_size=2_048,  # 8 minibatches
        epochs=3,
        learning_rate=5e-4,
        final_learning_rate=None,
        kl_target=None,
        gamma=0.999,
        gae_lambda=0.95,
        clip=0.2,
        entropy_coefficient=0.01,
        value_coefficient=0.5,
        max_grad_norm=0.5,
    ),
    labelling=settings.LabellingSettings(
        instructions="Prefer the clip that takes the coin or gets further right towards it. Goal: reach the coin. "
        "Worst: hitting a saw, a monster or lava."
    ),
)
