"""What does a reward look at? `rlhf_ray.interpret.reward.report` puts all tools of this folder into one report."""
