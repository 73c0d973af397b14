"""What goes on inside an agent: its memory, its world, and what its actions and values depend on."""
