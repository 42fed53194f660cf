"""Log-ratios that are noise, and where trust regions drop them (ENTR, arXiv 2607.22186)."""
