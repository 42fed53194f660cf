"""Stretto: asynchronous reinforcement learning whose staleness is exact, bounded, visible and corrected."""

__version__ = "0.1.0"
