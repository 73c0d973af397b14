"""Pendulum-v1: swing a pendulum up and hold it there; 200 comparisons, 100,000 environment steps."""

from rlhf_ray import settings

experiment = settings.Experiment(
    environment="Pendulum-v1",
    total_env_steps=100_000,
    # Short fragments carry more information per step; 10 did better than 25.
    # Pairs come from all that was done: an agent that is stuck shows one thing only.
    fragments=settings.FragmentSettings(length=10, initial_env_steps=1_600, pool=4_000),
    # An early correct reward decides the outcome: an agent that a wrong one taught stays where that paid. Random actions show all
    # of this task, so most labels are asked about them. With 10 or 20 % of the answers wrong, none of 12 runs (tuning seeds 100 to
    # 108, five networks) came to less than 0.8; with half of the labels at first, 3 of 16 did (docs/people_err.md). Of 40 runs on
    # fresh seeds, 4 came to less. (All of these with 8 copies and 61 rounds.)
    preferences=settings.PreferenceSettings(
        comparisons=200,
        initial_comparisons=0.75,
        rounds=30,
    ),
    reward_model=settings.RewardModelSettings(
        normalize_inputs="none",
        learning_rate=2e-3,
        # AdamW keeps weights below the inverse of its decay (Xie and Li 2024): smooth enough to contradict wrong answers. Of 200
        # answers, 20 % of them wrong, rewards had a correlation of 0.81 with the true ones on all states; with 0.01, of 0.42.
        weight_decay=10.0,
        initial_updates=200,
        updates=20,
    ),
    ppo=settings.PPOSettings(
        # Half as many iterations, fits and gradient steps as with 8 copies, minibatches of 128 and a rate of 1e-3 come to the same
        # return, and cost 0.8 of the CPU time: 20 seeds of each, none wrong.
        rollout_length=200,  # one episode
        entropy_coefficient=0.0,
        learning_rate=2e-3,
        gamma=0.98,
        gae_lambda=0.9,
    ),
    labelling=settings.LabellingSettings(
        instructions="Prefer the pendulum that is closer to upright; if both are upright, the one that moves less. "
        "Goal: swing up and hold still."
    ),
)

VARY = {"ppo.gamma": [0.95, 0.98]}  # a horizon of 20 or 50 of the 200 steps
