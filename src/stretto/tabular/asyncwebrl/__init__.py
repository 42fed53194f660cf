"""Multi-step tasks in which a rambling agent fails late (AsyncWebRL, arXiv 2606.05597)."""
