"""Prompts with responses of a few tokens, trained on stale samples (ASymPO, arXiv 2606.03070)."""
