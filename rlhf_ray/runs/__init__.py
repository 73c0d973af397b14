"""Runs: from an experiment to a folder with a trained agent, and a report of it."""
