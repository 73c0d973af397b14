"""Evaluation metrics of policies and rewards."""
