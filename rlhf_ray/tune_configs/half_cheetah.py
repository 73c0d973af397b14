"""HalfCheetah-v5 (MuJoCo): run; 700 comparisons, 1,000,000 environment steps.

"Christiano" is Christiano et al. 2017 (appendix A), "B-Pref" Lee et al. 2021 and its code, "PPO" Schulman et al. 2017 (table 3).
Settings without a source are our own choice and not tuned, nor are those of the presets that change this one; see `rlhf-ray tune`.
"""

from rlhf_ray import settings

experiment = settings.Experiment(
    environment="HalfCheetah-v5",  # episodes always have 1,000 steps
    total_env_steps=1_000_000,  # PPO
    fragments=settings.FragmentSettings(
        length=30,  # Christiano: 1.5 s at 0.05 s per step
        initial_env_steps=12_000,  # enough for 350 fragments without overlap: two per initial comparison
        pool=400,
    ),
    preferences=settings.PreferenceSettings(
        comparisons=700,  # Christiano: with 700, close to the true reward on all MuJoCo tasks
        initial_comparisons=0.25,  # Christiano
        rounds=48,  # one per ten iterations, with 10 or 11 comparisons each
        # Christiano: a rate proportional to 2e6/(T + 2e6), that is 1/(1 + t/2) over a million steps.
        schedule="hyperbolic",
        steepness=0.5,
        selection="disagreement",  # Christiano, B-Pref
        oversampling=10,  # Christiano, B-Pref
    ),
    reward_model=settings.RewardModelSettings(
        hidden=(64, 64),  # Christiano
        activation="leaky_relu",  # Christiano, B-Pref
        normalize_inputs="running",
        ensemble_size=3,  # Christiano, B-Pref
        learning_rate=1e-3,
        weight_decay=0.01,
        batch_size=64,
        initial_updates=200,
        updates=50,
    ),
    ppo=settings.PPOSettings(
        num_envs=8,
        rollout_length=256,  # 2,048 steps per iteration (PPO), over 8 environments
        minibatch_size=64,  # PPO
        epochs=10,  # PPO
        entropy_coefficient=0.0,  # PPO
        learning_rate=3e-4,  # PPO
        gamma=0.99,  # PPO
        gae_lambda=0.95,  # PPO
        clip=0.2,  # PPO
        hidden=(64, 64),  # PPO
    ),
    labelling=settings.LabellingSettings(
        instructions="Prefer the cheetah that runs further to the right (watch the floor). Goal: run forward fast. "
        "Worst: lying on its back."
    ),
)

VARY = {"ppo.gamma": [0.98, 0.99, 0.995]}  # Christiano: 0.995
