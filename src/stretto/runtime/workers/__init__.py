"""Engines and learners as the loop holds them: inline, in processes of their own, or simulated."""
