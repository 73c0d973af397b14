"""World models: an environment learned from a recording, with the agent inside."""
