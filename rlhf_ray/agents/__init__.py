"""Agents that take one step at a time: play them, record what happens inside, read it back. What runs and tools share."""
