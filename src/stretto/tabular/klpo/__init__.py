"""KL-regularised policy optimisation on a token tree: population quantities and estimators (KLPO, arXiv 2610.08963)."""
