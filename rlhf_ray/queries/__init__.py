"""What is asked: the pool of fragments, which pairs of them, how many and when."""
