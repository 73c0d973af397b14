"""Runs: train an experiment into a run folder with an agent and a report."""
