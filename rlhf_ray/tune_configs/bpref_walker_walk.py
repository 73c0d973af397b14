"""B-Pref's WalkerWalk (EnvPool), SAC scaled to two cores; 1,000 comparisons in ten sessions, 500,000 environment steps."""

from rlhf_ray import settings

# "B-Pref": scripts/walker_walk/1000/oracle/run_PEBBLE.sh and config/ (Lee et al. 2021). The first comparisons show the pretrained
# agent and random actions, in equal parts; there the pretrained agent alone.
experiment = settings.Experiment(
    environment="envpool/WalkerWalk-v1",
    agent="sac",
    total_env_steps=500_000,
    # B-Pref: 50 steps, from anywhere in the last 100 trajectories, as many steps as 2,000 fragments have.
    fragments=settings.FragmentSettings(length=50, start_share=0.0, pool=2_000, initial_env_steps=2_000),
    preferences=settings.PreferenceSettings(
        comparisons=1_000,
        initial_comparisons=0.1,  # the first of ten sessions, of 100 each
        rounds=9,
        schedule="constant",
        until=0.36,  # a session every 20,000 steps
        pretraining_env_steps=10_000,
        selection="disagreement",
        oversampling=10,
        held_out_share=0.0,  # all labels count: nothing is said of wrong ones
    ),
    reward_model=settings.RewardModelSettings(
        hidden=(256, 256, 256),
        activation="leaky_relu",
        use_action=True,
        ensemble_size=3,
        bootstrap=False,
        learning_rate=3e-4,
        weight_decay=0.0,
        batch_size=128,
        initial_updates=50,  # 50 passes over 100 labels
        updates=200,  # 50 passes at most over 200 to 1,000 labels, which end at an accuracy of 97 %
    ),
    sac=settings.SACSettings(
        rollout_length=100,
        learning_starts=1_000,
        actor_learning_rate=5e-4,
        critic_learning_rate=5e-4,
        alpha_learning_rate=1e-4,
        # Scaled to two cores: B-Pref has two layers of 1,024 units, batches of 1,024 and a gradient step for each step.
        hidden=(256, 256),
        batch_size=256,
        updates_per_env_step=0.25,
    ),
    ppo=settings.PPOSettings(fresh_policy=False, entropy_coefficient=0.0),  # with --agent ppo: PrefPPO's goes on
    labelling=settings.LabellingSettings(
        instructions="Prefer the walker that walks better. Goal: walk upright, forward."
    ),
)
