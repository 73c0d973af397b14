"""Optimisers, and parameters as one vector, for policies and reward models."""
