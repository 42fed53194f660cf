"""Foraging under guidance: a strategist that sends two tactical learners to quadrants of a grid (CHMAS)."""
