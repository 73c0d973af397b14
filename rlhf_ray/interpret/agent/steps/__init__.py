"""Steps of the chain: one file each."""
