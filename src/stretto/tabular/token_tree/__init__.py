"""A tree of tokens whose policies have exact values, and an objective's gradients on it."""
