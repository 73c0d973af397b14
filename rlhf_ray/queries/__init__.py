"""Queries: the fragment pool, pair selection, the label schedule and gatherers."""
