"""A bandit and toy models on which stale gradients become unstable (arXiv 2607.01083)."""
