"""A random walk on which critics are learned from another policy's trajectories (BRACE, arXiv 2609.09783)."""
