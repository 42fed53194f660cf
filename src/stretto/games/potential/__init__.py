"""Markov alpha-potential games: congestion, job scheduling, distancing; natural policy gradient, exact and sampled."""
