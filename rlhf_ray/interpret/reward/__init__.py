"""What does a reward look at? `rlhf_ray.interpret.reward.report` is the study of a reward."""
