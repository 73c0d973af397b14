"""What a policy and a reward are worth, in numbers."""
