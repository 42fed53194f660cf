"""What flows: trajectories, columns, batches, counter-based random numbers."""
