"""Shared clusters: submit runs as jobs, list them, stop them, and check the nodes."""
