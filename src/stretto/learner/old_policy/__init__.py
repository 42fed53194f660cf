"""Who fills ``logp_old``: the trainer's log-probability of each token at the version that sampled it (Missing Old
Logits, arXiv 2605.12070). One file a route."""
