"""The run report: a readable page on a run's outcome, and caveats about its numbers."""
