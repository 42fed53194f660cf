"""Exact games in float64: Markov games, linear-quadratic games, foragers, markets; each with its oracle."""
