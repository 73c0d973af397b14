"""Deep reinforcement learning from human preferences, distributed on Ray."""

__version__ = "0.1.0"
