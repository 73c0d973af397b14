"""Clusters that several people share: runs as jobs, what is running, and stopping it."""
