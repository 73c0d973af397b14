"""Tools that show what a learned reward, and an agent, look at. No Ray on this floor."""
