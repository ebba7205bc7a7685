"""The loop over MIG instances in the layouts of a calendar."""
