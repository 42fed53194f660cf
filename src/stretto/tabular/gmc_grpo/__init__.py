"""Groups of a bandit, enumerated (GMC-GRPO, arXiv 2610.01896)."""
