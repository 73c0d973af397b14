"""What everything else is made of: arrays, trajectories, fragments, comparisons; errors; files that are whole or not there."""
