"""B-Pref's QuadrupedWalk (EnvPool), SAC scaled to two cores; 1,000 comparisons in ten sessions, 1,000,000 steps."""

from rlhf_ray.tune_configs import bpref_walker_walk

experiment = bpref_walker_walk.experiment.changed(
    environment="envpool/QuadrupedWalk-v1",
    total_env_steps=1_000_000,
    preferences={"until": 0.27},  # a session every 30,000 steps
    sac={"actor_learning_rate": 1e-4, "critic_learning_rate": 1e-4},
    labelling={"instructions": "Prefer the robot that walks better. Goal: walk upright, forward."},
)
