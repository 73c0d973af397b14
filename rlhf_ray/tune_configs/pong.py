"""Pong (Atari): 5,500 comparisons, 10,000,000 environment steps, with the settings of Christiano et al. 2017 (appendix A).

The paper trains A2C for 50 million steps; this preset trains PPO with its published Atari settings (Schulman et al. 2017, table 5)
for a fifth of the steps; comments mark both. Settings without a source are our own choice and not tuned. The fragments take 8 GB of
disk. Needs a GPU, or rollouts on several nodes (`--ppo.num-env-runners`); takes days on a CPU.
"""

from rlhf_ray import settings

experiment = settings.Experiment(
    # 84x84, grey, four stacked frames, the score blacked out and the end of a game hidden (the paper).
    environment="rlhf_ray/Pong-v0",
    total_env_steps=10_000_000,  # a fifth of the paper's
    fragments=settings.FragmentSettings(
        length=25,  # the paper: 1.7 s
        initial_env_steps=25_600,  # enough for 1,000 fragments without overlap: two per initial comparison
        pool=1_000,
    ),
    preferences=settings.PreferenceSettings(
        comparisons=5_500,  # the paper
        initial_comparisons=1 / 11,  # the paper: 500
        rounds=500,  # one per twenty iterations, with about ten comparisons each
        # The paper: a rate proportional to 5e6/(T + 5e6), that is 1/(1 + 2t) over ten million steps.
        schedule="hyperbolic",
        steepness=2.0,
        selection="disagreement",  # the paper
        oversampling=10,  # the paper
    ),
    reward_model=settings.RewardModelSettings(
        hidden=(64,),  # the paper; two convolutions instead of four, without batch norm and dropout
        activation="leaky_relu",  # the paper
        ensemble_size=3,  # the paper
        window=3_000,  # the paper: fit to the newest 3,000 labels
        learning_rate=3e-4,
        weight_decay=0.01,
        initial_updates=500,
        updates=50,
    ),
    ppo=settings.PPOSettings(
        network="nature",
        num_envs=8,  # PPO paper, like all below
        rollout_length=128,
        minibatch_size=256,
        epochs=3,
        learning_rate=2.5e-4,
        final_learning_rate=0.0,
        gamma=0.99,
        gae_lambda=0.95,
        clip=0.1,
        kl_target=None,
        entropy_coefficient=0.01,  # both papers
        value_coefficient=1.0,
    ),
    labelling=settings.LabellingSettings(
        instructions="Prefer the clip where the right paddle scores or returns the ball. Goal: win points. "
        "Worst: missing the ball."
    ),
)

VARY = {"ppo.entropy_coefficient": [0.003, 0.01, 0.03], "reward_model.weight_decay": [1e-3, 1e-2, 1e-1]}
"""Around both papers' entropy; the paper adapts its L2 regularisation to the held-out loss."""
