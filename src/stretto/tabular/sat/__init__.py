"""Properties of the staleness-adaptive trust region, token by token (SAT, arXiv 2607.18722)."""
