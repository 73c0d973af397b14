"""Basic types and tools: arrays, trajectories, fragments, comparisons, errors and atomic files."""
