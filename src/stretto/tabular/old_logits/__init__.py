"""An engine that is not quite the trainer, and routes to the trainer's old log-probabilities (arXiv 2605.12070)."""
