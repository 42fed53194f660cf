"""Simulated hardware for rehearsal and planning: durations, and stand-ins for engine, learner and environment."""
