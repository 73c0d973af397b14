"""Preprocessing: turn a reward into an equivalent one that is easier to read (Jenner and Gleave 2022).

`preprocess` adds potential shaping, and a constant where episodes never terminate, so that the reward becomes sparse or smooth.
Optimal policies stay the same: see the `Certificate`.
"""
