"""Bandits for single rollouts against groups (SAO, arXiv 2607.07508)."""
