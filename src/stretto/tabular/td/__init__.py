"""Temporal-difference learning on one trajectory: reward processes, the kernel, an online learner, exact laws."""
