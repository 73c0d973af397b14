"""B-Pref's ButtonPress (Meta-World, EnvPool), SAC scaled to two cores; 20,000 comparisons, 1,000,000 steps."""

from rlhf_ray.tune_configs import bpref_walker_walk

experiment = bpref_walker_walk.experiment.changed(
    environment="envpool/MetaWorld/ButtonPress-v3",
    total_env_steps=1_000_000,
    fragments={"pool": 1_000},  # 100 trajectories of 500 steps
    # A session of 100 labels every 5,000 steps, to the end.
    preferences={"comparisons": 20_000, "initial_comparisons": 100, "rounds": 199, "until": 1.0},
    reward_model={"updates": 100},  # ten passes at most
    # Scaled to two cores: B-Pref has three layers of 256 units, batches of 512 and a gradient step for each step.
    sac={"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4},
    labelling={"instructions": "Prefer the arm that is closer to pressing the button. Goal: press it."},
)
