"""Exact small worlds in float64: trees, chains, bandits and toy models whose every expectation is computed."""
