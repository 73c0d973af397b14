"""An agent's internals: its memory, its world, and what its actions and values depend on."""
