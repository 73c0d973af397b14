"""MovingDot: move a dot to the middle of a 64x64 image; 300 comparisons, 150,000 environment steps."""

from rlhf_ray import settings

experiment = settings.Experiment(
    environment="rlhf_ray/MovingDot-v0",
    total_env_steps=150_000,
    fragments=settings.FragmentSettings(length=10, initial_env_steps=3_200, pool=100),
    # Fitting a convolutional reward costs more than the rollouts, so one round per four iterations is enough.
    preferences=settings.PreferenceSettings(comparisons=300, initial_comparisons=0.2, rounds=23, schedule="constant"),
    reward_model=settings.RewardModelSettings(learning_rate=1e-3, initial_updates=100, updates=30),
    ppo=settings.PPOSettings(
        rollout_length=100,  # one episode
        epochs=6,  # with 3 the normalised score was lower: 0.89 and 0.91 on two seeds
        learning_rate=5e-4,
        gamma=0.9,
    ),
    labelling=settings.LabellingSettings(
        instructions=(
            "Prefer the dot that is nearer to the middle or moves towards it. Goal: reach the middle and stay."
        )
    ),
)
