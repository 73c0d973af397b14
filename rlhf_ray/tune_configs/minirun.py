"""MiniRun: run to the coin over saws and pits, with a memory for the jump; 400 comparisons, 250,000 environment steps.

An expert for `rlhf-ray interpret agent`: `rlhf-ray train minirun --true-reward`.
"""

from rlhf_ray import settings

experiment = settings.Experiment(
    environment="rlhf_ray/MiniRun-v0",
    total_env_steps=250_000,
    # The coin is the only reward and ends the episode, and random agents rarely live longer than ten steps. So fragments are short,
    # and many: few contain a coin, and two without one are a tie.
    fragments=settings.FragmentSettings(length=5, initial_env_steps=12_000, pool=2_000),
    preferences=settings.PreferenceSettings(
        comparisons=400,
        rounds=30,
        schedule="constant",
        selection="disagreement",
        # An episode ends at the coin, at a hazard or at the time limit, so its length unavoidably leaks reward information.
        allow_variable_horizon=True,
    ),
    reward_model=settings.RewardModelSettings(
        network="small_cnn",
        # The coin counts in the step that ends the episode; the image after it shows agent and coin in one place.
        use_next_state=True,
        use_done=True,
        learning_rate=1e-3,
        initial_updates=300,
        updates=50,
    ),
    ppo=settings.PPOSettings(
        network="small",
        memory="gru",
        memory_units=64,
        num_envs=64,
        rollout_length=64,
        minibatch_size=1_024,  # a quarter of the environments
        epochs=3,
        learning_rate=1.5e-3,
        final_learning_rate=0.0,
        gamma=0.99,
        gae_lambda=0.95,
        clip=0.2,
        entropy_coefficient=0.01,
        value_coefficient=0.25,  # RLlib's loss has no half
    ),
    labelling=settings.LabellingSettings(
        instructions="Prefer the clip that takes the coin or gets further right towards it. Goal: take the coin. "
        "Worst: a saw or a pit."
    ),
)
